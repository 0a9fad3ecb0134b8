"""The trajectory matching loss: a student trained on the synthetic pairs should arrive where the expert did.

The student starts at one epoch of an expert, takes a few steps on synthetic pairs, and is compared with the expert some
epochs later, tower by tower:

    |theta_student - theta_target|^2 / |theta_start - theta_target|^2    summed over image and text tower

There are two ways to the gradient of this loss. `unrolled_loss` keeps every step's graph and is exact (MTT).
`stepwise_loss` holds each step's parameters constant, so that the steps' contributions add up one at a time and memory
is that of one step (TESLA).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pairstill.distillation.functional_student import FunctionalStudent, Parameters, StudentData, accumulate, as_leaves
from pairstill.errors import PairstillError
from pairstill.experts.bank import Bank


@dataclass(frozen=True)
class TrajectorySegment:
    """Two points of one expert's training."""

    start: Parameters
    target: Parameters


def draw_segment(
    bank: Bank, random: torch.Generator, span: int, max_start: int, device: torch.device
) -> TrajectorySegment:
    """A random expert between two of its epochs, `span` apart; the first is one of 0 (the anchor) ... max_start - 1."""
    expert = bank.experts[int(torch.randint(len(bank.experts), (), generator=random))]
    rows = bank.rows_of(expert)
    starts = min(max_start, len(rows) - span + 1)
    if starts < 1:
        raise PairstillError(
            f"expert {expert} of {bank.folder} has {len(rows)} epochs, fewer than the span of {span}. Lower "
            "--settings.expert-epochs, or train experts for longer."
        )
    start = int(torch.randint(starts, (), generator=random))
    begin = bank.parameters(rows[start - 1]) if start else bank.anchor
    end = bank.parameters(rows[start + span - 1])
    return TrajectorySegment({n: p.to(device) for n, p in begin.items()}, {n: p.to(device) for n, p in end.items()})


def matching_loss(student: FunctionalStudent, reached: Parameters, segment: TrajectorySegment) -> Tensor:
    """The loss above, of a student that reached these parameters."""
    total: Tensor = torch.zeros(())
    for of_text in (False, True):
        names = [name for name in segment.start if student.is_text(name) is of_text]
        missed = torch.stack([(reached[n] - segment.target[n]).square().sum() for n in names]).sum()
        whole = torch.stack([(segment.start[n] - segment.target[n]).square().sum() for n in names]).sum()
        total = total.to(missed) + missed / whole
    return total


def unrolled_loss(
    student: FunctionalStudent, segment: TrajectorySegment, data: StudentData, batches: Sequence[Tensor]
) -> Tensor:
    """The matching loss with the graph of all steps: its backward is the exact gradient (MTT)."""
    parameters = as_leaves(segment.start)
    for step, rows in enumerate(batches):
        gradients = student.gradients(parameters, data, rows, step, graph=True)
        parameters = {name: p - student.lr(name, data) * gradients[name] for name, p in parameters.items()}
    return matching_loss(student, parameters, segment)


def stepwise_loss(
    student: FunctionalStudent, segment: TrajectorySegment, data: StudentData, batches: Sequence[Tensor]
) -> Tensor:
    """The matching loss; the gradients of `data` are added to it in place, in the memory of one step (TESLA).

    With each step's parameters held constant the student arrives at theta_0 - lr * sum_t g_t, so a step contributes
    d<v, -lr g_t>/d(data), v being the loss' gradient where the student arrives. A first pass finds v, a second the
    contributions; the step sizes' gradient is <v, -sum_t g_t>.
    """
    arrived = dict(segment.start)
    for gradients in _walk(student, segment.start, data, batches, graph=False):
        arrived = {name: p - (student.lr(name, data) * gradients[name]).detach() for name, p in arrived.items()}
    arrived = as_leaves(arrived)
    loss = matching_loss(student, arrived, segment)
    direction = dict(zip(arrived, torch.autograd.grad(loss, list(arrived.values())), strict=True))
    leaves = data.leaves()
    for gradients in _walk(student, segment.start, data, batches, graph=True):
        for lr, of_text in ((data.image_lr, False), (data.text_lr, True)):
            if lr.requires_grad:
                names = [name for name in gradients if student.is_text(name) is of_text]
                accumulate(lr, -torch.stack([(direction[n] * gradients[n].detach()).sum() for n in names]).sum())
        pull = torch.stack(
            [(-student.lr(n, data).detach() * direction[n] * gradients[n]).sum() for n in gradients]
        ).sum()
        for leaf, grad in zip(leaves.values(), torch.autograd.grad(pull, list(leaves.values())), strict=True):
            accumulate(leaf, grad)
    return loss.detach()


def _walk(
    student: FunctionalStudent, start: Parameters, data: StudentData, batches: Sequence[Tensor], graph: bool
) -> Iterator[Parameters]:
    """The gradient at each of the student's steps; its parameters are constants of the next step."""
    parameters = as_leaves(start)
    for step, rows in enumerate(batches):
        gradients = student.gradients(parameters, data, rows, step, graph)
        yield gradients
        with torch.no_grad():
            moved = {name: p - student.lr(name, data) * gradients[name] for name, p in parameters.items()}
        del gradients
        parameters = as_leaves(moved)
