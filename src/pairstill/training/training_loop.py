"""Training a two-tower model with InfoNCE: the one loop behind experts and students."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pairstill.errors import PairstillError
from pairstill.losses import info_nce, weighted_bce
from pairstill.rows import Rows
from pairstill.seeds import generator, global_seed
from pairstill.towers import TwoTower


class TrainingDiverged(PairstillError):
    """The loss left the finite world."""


class Inputs(Protocol):
    """What the image tower reads, by row: features in towers `heads`, normalised pixels in `full`."""

    def __len__(self) -> int: ...

    def take(self, rows: Tensor, random: torch.Generator | None = None) -> Tensor:
        """The rows as one tensor; with a generator, augmented where these inputs have an augmentation."""
        ...


@dataclass(frozen=True)
class TensorInputs:
    """Inputs that are rows of a matrix: cached features, or the pictures of a distilled set."""

    tensor: Rows
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None

    def __len__(self) -> int:
        return len(self.tensor)

    def take(self, rows: Tensor, random: torch.Generator | None = None) -> Tensor:
        """See `Inputs`."""
        chosen = self.tensor[rows]
        return self.augment(chosen, random) if self.augment and random else chosen


@dataclass(frozen=True)
class TrainingPairs:
    """Pairs to train on: `links` [P, 2] joins rows of `inputs` to rows of `texts` [C, d_t].

    With `similarity` [P, P], soft targets of each pair's picture for each pair's text, the loss is the weighted
    binary cross-entropy against them; without it InfoNCE.
    """

    inputs: Inputs
    texts: Rows
    links: Tensor
    similarity: Tensor | None = None


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Args:
        epochs: Passes over the pairs.
        lr: Step size of SGD.
        text_lr: Step size of the text projector, where it is another.
        momentum: Momentum of SGD.
        weight_decay: L2 penalty.
        batch_size: Pairs in a step.
        decay: The step size is multiplied by this at half of the epochs.
        temperature: Of the loss.
        one_caption: An epoch takes each picture once, with one of its captions drawn anew, instead of every pair.
    """

    epochs: int
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = 128
    decay: float = 1.0
    temperature: float = 0.07
    one_caption: bool = False
    text_lr: float | None = None

    def __post_init__(self) -> None:
        needs = {
            "epochs": (self.epochs >= 1, "at least 1"),
            "lr": (self.lr > 0, "above 0"),
            "text_lr": (self.text_lr is None or self.text_lr > 0, "above 0"),
            "momentum": (0 <= self.momentum < 1, "at least 0 and below 1"),
            "weight_decay": (self.weight_decay >= 0, "at least 0"),
            "batch_size": (self.batch_size >= 2, "at least 2"),
            "decay": (self.decay > 0, "above 0"),
            "temperature": (self.temperature > 0, "above 0"),
        }
        for name, (holds, what) in needs.items():
            if not holds:
                raise PairstillError(f"{name} of a training recipe must be {what}, not {getattr(self, name)}.")


EXPERT_RECIPE = Recipe(epochs=10)
STUDENT_RECIPE = Recipe(epochs=100, momentum=0.9, weight_decay=5e-4, decay=0.1)


def batches(count: int, size: int, random: torch.Generator) -> Iterator[Tensor]:
    """Rows 0..count-1 in a random order, `size` at a time; a single row left over is dropped (it has no negative)."""
    for rows in torch.randperm(count, generator=random).split(size):
        if len(rows) > 1:
            yield rows


def one_link_per_picture(links: Tensor, random: torch.Generator) -> Tensor:
    """Of each picture's links [P, 2] one, drawn at random."""
    shuffled = links[torch.randperm(len(links), generator=random)]
    order = torch.argsort(shuffled[:, 0], stable=True)
    images = shuffled[order, 0]
    first = torch.ones(len(images), dtype=torch.bool)
    first[1:] = images[1:] != images[:-1]
    return shuffled[order[first]]


def train(
    model: TwoTower,
    pairs: TrainingPairs,
    recipe: Recipe,
    seed: int,
    on_epoch: Callable[[int], None] | None = None,
    done: int = 0,
) -> None:
    """Train `model` in place. `on_epoch` gets the number of finished epochs, with the model in training mode.

    A model that went through `done` epochs before goes on to the same result, if the recipe has no momentum.
    """
    groups = [
        {"params": list(model.image_parameters().values()), "full_lr": recipe.lr},
        {
            "params": list(model.text_parameters().values()),
            "full_lr": recipe.lr if recipe.text_lr is None else recipe.text_lr,
        },
    ]
    optimiser = torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
    for epoch in range(done, recipe.epochs):
        for group in optimiser.param_groups:
            group["lr"] = group["full_lr"] * (recipe.decay if epoch >= math.ceil(recipe.epochs / 2) else 1.0)
        with global_seed(seed, "dropout", epoch):
            loss = _train_epoch(model, optimiser, pairs, recipe, generator(seed, "batches", epoch))
        _refuse_divergence(model, loss, recipe, epoch + 1)
        if on_epoch:
            on_epoch(epoch + 1)


def _train_epoch(
    model: TwoTower,
    optimiser: torch.optim.Optimizer,
    pairs: TrainingPairs,
    recipe: Recipe,
    random: torch.Generator,
) -> float:
    """One pass over the pairs; returns the last loss."""
    model.train()
    loss = torch.zeros(())
    device = next(model.parameters()).device
    links = one_link_per_picture(pairs.links, random) if recipe.one_caption else pairs.links
    for rows in batches(len(links), recipe.batch_size, random):
        image_rows, text_rows = links[rows].unbind(1)
        inputs = pairs.inputs.take(image_rows, random).to(device)
        images, texts = model(inputs, pairs.texts[text_rows].to(device))
        if pairs.similarity is None:
            loss = info_nce(images, texts, recipe.temperature)
        else:
            loss = weighted_bce(images, texts, pairs.similarity[rows][:, rows].to(device), recipe.temperature)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
    return loss.item()


def _refuse_divergence(model: TwoTower, loss: float, recipe: Recipe, epoch: int) -> None:
    """A bad gradient in the last step shows in no loss, so the parameters are looked at too."""
    if math.isfinite(loss) and all(torch.isfinite(parameter).all() for parameter in model.parameters()):
        return
    raise TrainingDiverged(
        f"training diverged in epoch {epoch}: the loss was {loss:.3g} with lr {recipe.lr}, or the parameters are no "
        "numbers any more. Lower the lr: --recipe.lr of experts, --student.lr of students."
    )
