"""A student as a function of its parameters and of its training pairs, so that its steps can be differentiated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pairstill.runtime.seeds import global_seed
from pairstill.towers.two_tower import TwoTower
from pairstill.training.losses import TEMPERATURE, info_nce, weighted_bce

Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class StudentData:
    """What the student trains on; gradients are taken for all of it.

    Attributes:
        inputs: What the image tower reads, [N, ...].
        texts: Text embeddings, [N, d_t].
        image_lr, text_lr: The student's step sizes, scalars.
        similarity: Soft targets [N, N] of the weighted BCE, or None for InfoNCE.
    """

    inputs: Tensor
    texts: Tensor
    image_lr: Tensor
    text_lr: Tensor
    similarity: Tensor | None = None

    def leaves(self) -> dict[str, Tensor]:
        """What the data's gradient is taken for, by name; the step sizes have their own formula."""
        named = {"inputs": self.inputs, "texts": self.texts, "similarity": self.similarity}
        return {name: value for name, value in named.items() if value is not None and value.requires_grad}


def draw_batches(count: int, size: int, steps: int, random: torch.Generator) -> list[Tensor]:
    """The rows of each of the student's steps: random orders of all pairs, cut into batches of `size`."""
    size = min(size, count)
    batches: list[Tensor] = []
    while len(batches) < steps:
        batches += [rows for rows in torch.randperm(count, generator=random).split(size) if len(rows) == size]
    return batches[:steps]


class FunctionalStudent:
    """A two-tower model as a function of its parameters. Its dropout repeats when a step is taken again."""

    def __init__(self, model: TwoTower, seed: int, temperature: float = TEMPERATURE) -> None:
        """`temperature` is that of the loss."""
        self.model = model.train()
        self.seed, self.temperature = seed, temperature
        self._text = set(model.text_parameters())

    def is_text(self, name: str) -> bool:
        """Whether a parameter belongs to the text tower."""
        return name in self._text

    def gradients(self, parameters: Parameters, data: StudentData, rows: Tensor, step: int, graph: bool) -> Parameters:
        """The gradient of the student's loss on some rows; with `graph`, one that can be differentiated again."""
        loss = self.loss(self.model, parameters, (data.inputs[rows], data.texts[rows]), data, rows, step)
        found = torch.autograd.grad(loss, list(parameters.values()), create_graph=graph)
        return dict(zip(parameters, found, strict=True))

    def loss(
        self,
        model: TwoTower,
        parameters: Parameters,
        inputs: tuple[Tensor, Tensor],
        data: StudentData,
        rows: Tensor,
        step: int,
    ) -> Tensor:
        """A model's loss on the inputs of some rows, with the dropout of a step."""
        with global_seed(self.seed, "student", step):
            images, texts = torch.func.functional_call(model, parameters, inputs)
        if data.similarity is None:
            return info_nce(images, texts, self.temperature)
        return weighted_bce(images, texts, data.similarity[rows][:, rows], self.temperature)

    def lr(self, name: str, data: StudentData) -> Tensor:
        """The step size of a parameter's tower."""
        return data.text_lr if self.is_text(name) else data.image_lr


def as_leaves(parameters: Mapping[str, Tensor]) -> Parameters:
    """The same values as leaves of a new graph."""
    return {name: value.detach().requires_grad_() for name, value in parameters.items()}


def accumulate(leaf: Tensor, grad: Tensor) -> None:
    """Add to a leaf's gradient."""
    if leaf.grad is None:
        leaf.grad = grad
    else:
        leaf.grad.add_(grad)
