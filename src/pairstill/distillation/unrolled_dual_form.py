"""The same practice for less: first layers as sums over the pairs.

The first layer of a projector reads the pairs' own features X [N, d], so whatever SGD adds to its weight is a
combination of their rows. With coefficients A [N, width] instead of the weight,

    W_t = s_t W_0 + A_t' X        X W_t' = s_t (X W_0') + (X X') A_t

A's slope is that of the layer's output, row by row; momentum and weight decay do to A what they do to W; and s_t, what
decay leaves of the first weight, is known beforehand. So a step costs N where it cost d, with half as many products.
The pairs' gradient is the same: it goes through X X', X W_0' and the weight with which the student is examined.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from pairstill.methods.differentiable import Material, Parameters, Student, tracked
from pairstill.methods.practice import Exam, Inertia, through_practice

HEADS = ("image_head", "text_head")

WORTH_IT = 2
"""Up to so many pairs for each feature: a step has half as many products in this form."""


@dataclass(frozen=True)
class DualMaterial(Material):
    """What a student in this form reads, by head.

    Attributes:
        grams: X X' of a head's inputs, [N, N].
        firsts: X W_0', [N, width].
    """

    grams: Mapping[str, Tensor] = field(default_factory=dict)
    firsts: Mapping[str, Tensor] = field(default_factory=dict)

    def leaves(self) -> dict[str, Tensor]:
        """See `Material`."""
        grams = {f"{head}.gram": gram for head, gram in self.grams.items()}
        return {**super().leaves(), **grams, **{f"{head}.first": first for head, first in self.firsts.items()}}


class DualStudent(Student):
    """A student whose parameters have coefficients in place of some heads' first weights."""

    def __init__(self, student: Student, left: Mapping[str, Sequence[float]]) -> None:
        """`left`: by head, what is left of its first weight before each step."""
        super().__init__(student.model, student.seed, student.temperature)
        self._left = left
        self._rest = copy.deepcopy(student.model)
        for head in left:
            getattr(self._rest, head).projection = nn.Identity()

    def gradients(self, parameters: Parameters, data: Material, rows: Tensor, step: int, graph: bool) -> Parameters:
        """See `Student`; what a coefficient's slope is, this module says."""
        assert isinstance(data, DualMaterial)
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
        slopes = dict(zip(rest, found[len(projected) :], strict=True))
        for head, slope in zip(projected, found, strict=False):
            slopes[weight_of(head)] = torch.zeros_like(data.firsts[head]).index_add(0, rows.to(slope.device), slope)
            slopes[bias_of(head)] = slope.sum(0)
        return {name: slopes[name] for name in parameters}


def weight_of(head: str) -> str:
    """The name of a head's first weight."""
    return f"{head}.projection.weight"


def bias_of(head: str) -> str:
    """The name of its bias."""
    return f"{head}.projection.bias"


def through_dual_practice(
    student: Student, start: Parameters, data: Material, batches: Sequence[Tensor], inertia: Inertia, exam: Exam
) -> Tensor:
    """What `through_practice` gives, for less; many pairs have the plain way."""
    inputs = dict(zip(HEADS, (data.inputs, data.texts), strict=True))
    few = [head for head, x in inputs.items() if weight_of(head) in start and len(x) <= WORTH_IT * x.shape[-1]]
    if not few:
        return through_practice(student, start, data, batches, inertia, exam)
    weights = {head: start[weight_of(head)] for head in few}
    left = {head: _left(student.lr(weight_of(head), data).item(), inertia, len(batches)) for head in few}
    grams = {head: inputs[head] @ inputs[head].T for head in few}
    firsts = {head: inputs[head] @ weights[head].T for head in few}
    lrs = data.image_lr, data.text_lr
    dual = DualMaterial(data.inputs, data.texts, *lrs, data.similarity, tracked(grams), tracked(firsts))

    def exam_of_coefficients(parameters: Parameters) -> Tensor:
        whole = {weight_of(h): left[h][-1] * weights[h] + parameters[weight_of(h)].T @ inputs[h] for h in few}
        return exam({**parameters, **whole})

    coefficients = {weight_of(head): torch.zeros_like(first) for head, first in firsts.items()}
    here = {**start, **coefficients}
    loss = through_practice(DualStudent(student, left), here, dual, batches, inertia, exam_of_coefficients)
    for head in few:
        if inputs[head].requires_grad:
            torch.autograd.backward([grams[head], firsts[head]], [dual.grams[head].grad, dual.firsts[head].grad])
    return loss


def _left(lr: float, inertia: Inertia, steps: int) -> list[float]:
    """What weight decay leaves of the first weight, before each step and after the last."""
    left, velocity = [1.0], 0.0
    for _ in range(steps):
        velocity = inertia.momentum * velocity + inertia.weight_decay * left[-1]
        left.append(left[-1] - lr * velocity)
    return left
