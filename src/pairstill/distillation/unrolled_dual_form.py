"""Unrolled training for less: the first layers in dual form, as combinations of the pairs.

The first layer of a head reads the pairs' own features X [N, d], so whatever SGD adds to its weight is a combination
of their rows. With coefficients A [N, width] instead of the weight,

    W_t = s_t W_0 + A_t' X        X W_t' = s_t (X W_0') + (X X') A_t

A's gradient is that of the layer's output, row by row; momentum and weight decay do to A what they do to W; and s_t,
what decay leaves of the first weight, is known beforehand. So a step costs N where it cost d, with half as many
products. The pairs' gradient is the same: it goes through X X', X W_0' and the weight that the outer loss reads.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from pairstill.distillation.functional_student import FunctionalStudent, Parameters, StudentData, as_leaves
from pairstill.distillation.unrolled_training import OuterLoss, SgdSettings, backward_through_training

HEADS = ("image_head", "text_head")

PAIRS_PER_FEATURE = 2
"""Up to so many pairs for each feature the dual form pays: a step has half as many products in it."""


@dataclass(frozen=True)
class DualFormData(StudentData):
    """What a student in dual form reads, by head.

    Attributes:
        grams: X X' of a head's inputs, [N, N].
        firsts: X W_0', [N, width].
    """

    grams: Mapping[str, Tensor] = field(default_factory=dict)
    firsts: Mapping[str, Tensor] = field(default_factory=dict)

    def leaves(self) -> dict[str, Tensor]:
        """See `StudentData`."""
        grams = {f"{head}.gram": gram for head, gram in self.grams.items()}
        return {**super().leaves(), **grams, **{f"{head}.first": first for head, first in self.firsts.items()}}


class DualFormStudent(FunctionalStudent):
    """A student whose parameters have coefficients in place of some heads' first weights."""

    def __init__(self, student: FunctionalStudent, left: Mapping[str, Sequence[float]]) -> None:
        """`left`: by head, what is left of its first weight before each step."""
        super().__init__(student.model, student.seed, student.temperature)
        self._left = left
        self._rest = copy.deepcopy(student.model)
        for head in left:
            getattr(self._rest, head).projection = nn.Identity()

    def gradients(self, parameters: Parameters, data: StudentData, rows: Tensor, step: int, graph: bool) -> Parameters:
        """See `FunctionalStudent`; the module's docstring has the gradient of a coefficient."""
        assert isinstance(data, DualFormData)
        projected = {
            head: left[step] * data.firsts[head][rows]
            + torch.addmm(parameters[bias_of(head)], data.grams[head][rows], parameters[weight_of(head)])
            for head, left in self._left.items()
        }
        images, texts = (
            projected[head] if head in projected else plain[rows]
            for head, plain in zip(HEADS, (data.inputs, data.texts), strict=True)
        )
        own = {name(head) for head in projected for name in (weight_of, bias_of)}
        rest = {name: value for name, value in parameters.items() if name not in own}
        loss = self.loss(self._rest, rest, (images, texts), data, rows, step)
        found = torch.autograd.grad(loss, [*projected.values(), *rest.values()], create_graph=graph)
        gradients = dict(zip(rest, found[len(projected) :], strict=True))
        for head, gradient in zip(projected, found, strict=False):
            gradients[weight_of(head)] = torch.zeros_like(data.firsts[head]).index_add(
                0, rows.to(gradient.device), gradient
            )
            gradients[bias_of(head)] = gradient.sum(0)
        return {name: gradients[name] for name in parameters}


def weight_of(head: str) -> str:
    """The name of a head's first weight."""
    return f"{head}.projection.weight"


def bias_of(head: str) -> str:
    """The name of its bias."""
    return f"{head}.projection.bias"


def backward_through_dual_form(
    student: FunctionalStudent,
    start: Parameters,
    data: StudentData,
    batches: Sequence[Tensor],
    sgd: SgdSettings,
    outer_loss: OuterLoss,
) -> Tensor:
    """What `backward_through_training` gives, for less; heads with many pairs keep their weights."""
    inputs = dict(zip(HEADS, (data.inputs, data.texts), strict=True))
    few = [head for head, x in inputs.items() if weight_of(head) in start and len(x) <= PAIRS_PER_FEATURE * x.shape[-1]]
    if not few:
        return backward_through_training(student, start, data, batches, sgd, outer_loss)
    weights = {head: start[weight_of(head)] for head in few}
    left = {head: _left(student.lr(weight_of(head), data).item(), sgd, len(batches)) for head in few}
    grams = {head: inputs[head] @ inputs[head].T for head in few}
    firsts = {head: inputs[head] @ weights[head].T for head in few}
    lrs = data.image_lr, data.text_lr
    dual = DualFormData(data.inputs, data.texts, *lrs, data.similarity, as_leaves(grams), as_leaves(firsts))

    def outer_loss_of_coefficients(parameters: Parameters) -> Tensor:
        whole = {weight_of(h): left[h][-1] * weights[h] + parameters[weight_of(h)].T @ inputs[h] for h in few}
        return outer_loss({**parameters, **whole})

    coefficients = {weight_of(head): torch.zeros_like(first) for head, first in firsts.items()}
    here, dual_student = {**start, **coefficients}, DualFormStudent(student, left)
    loss = backward_through_training(dual_student, here, dual, batches, sgd, outer_loss_of_coefficients)
    for head in few:
        if inputs[head].requires_grad:
            torch.autograd.backward([grams[head], firsts[head]], [dual.grams[head].grad, dual.firsts[head].grad])
    return loss


def _left(lr: float, sgd: SgdSettings, steps: int) -> list[float]:
    """What weight decay leaves of the first weight, before each step and after the last."""
    left, velocity = [1.0], 0.0
    for _ in range(steps):
        velocity = sgd.momentum * velocity + sgd.weight_decay * left[-1]
        left.append(left[-1] - lr * velocity)
    return left
