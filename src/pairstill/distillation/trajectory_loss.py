"""Matching an expert's trajectory: a student trained on the synthetic pairs should arrive where the expert did.

The student starts at one epoch of an expert, takes a few steps on synthetic pairs, and is compared with the expert some
epochs later, tower by tower:

    |theta_student - theta_target|^2 / |theta_start - theta_target|^2    summed over image and text tower

Two ways to the gradient of this loss are here. `unrolled` keeps every step's graph and is exact (MTT). `step_by_step`
holds each step's parameters constant, so that the steps' contributions add up one at a time and memory is that of one
step (TESLA).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pairstill.bank import Bank
from pairstill.errors import PairstillError
from pairstill.methods.differentiable import Material, Parameters, Student, accumulate, tracked


@dataclass(frozen=True)
class Span:
    """Two points of one expert's training."""

    start: Parameters
    target: Parameters


def draw_span(bank: Bank, random: torch.Generator, span: int, max_start: int, device: torch.device) -> Span:
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
    return Span({n: p.to(device) for n, p in begin.items()}, {n: p.to(device) for n, p in end.items()})


def matching_loss(student: Student, reached: Parameters, span: Span) -> Tensor:
    """The loss above, of a student that reached these parameters."""
    total: Tensor = torch.zeros(())
    for of_text in (False, True):
        names = [name for name in span.start if student.is_text(name) is of_text]
        missed = torch.stack([(reached[n] - span.target[n]).square().sum() for n in names]).sum()
        whole = torch.stack([(span.start[n] - span.target[n]).square().sum() for n in names]).sum()
        total = total.to(missed) + missed / whole
    return total


def unrolled(student: Student, span: Span, data: Material, batches: Sequence[Tensor]) -> Tensor:
    """The matching loss with the graph of all steps: its backward is the exact gradient (MTT)."""
    parameters = tracked(span.start)
    for step, rows in enumerate(batches):
        slopes = student.gradients(parameters, data, rows, step, graph=True)
        parameters = {name: p - student.lr(name, data) * slopes[name] for name, p in parameters.items()}
    return matching_loss(student, parameters, span)


def step_by_step(student: Student, span: Span, data: Material, batches: Sequence[Tensor]) -> Tensor:
    """The matching loss; the gradients of `data` are added to it in place, in the memory of one step (TESLA).

    With each step's parameters held constant the student arrives at theta_0 - lr * sum_t g_t, so a step contributes
    d<v, -lr g_t>/d(data), v being the loss' slope where the student arrives. A first pass finds v, a second the
    contributions; the step sizes' gradient is <v, -sum_t g_t>.
    """
    arrived = dict(span.start)
    for slopes in _walk(student, span.start, data, batches, graph=False):
        arrived = {name: p - (student.lr(name, data) * slopes[name]).detach() for name, p in arrived.items()}
    arrived = tracked(arrived)
    loss = matching_loss(student, arrived, span)
    slope = dict(zip(arrived, torch.autograd.grad(loss, list(arrived.values())), strict=True))
    leaves = data.leaves()
    for slopes in _walk(student, span.start, data, batches, graph=True):
        for lr, of_text in ((data.image_lr, False), (data.text_lr, True)):
            if lr.requires_grad:
                names = [name for name in slopes if student.is_text(name) is of_text]
                accumulate(lr, -torch.stack([(slope[n] * slopes[n].detach()).sum() for n in names]).sum())
        pull = torch.stack([(-student.lr(n, data).detach() * slope[n] * slopes[n]).sum() for n in slopes]).sum()
        for leaf, grad in zip(leaves.values(), torch.autograd.grad(pull, list(leaves.values())), strict=True):
            accumulate(leaf, grad)
    return loss.detach()


def _walk(
    student: Student, start: Parameters, data: Material, batches: Sequence[Tensor], graph: bool
) -> Iterator[Parameters]:
    """The gradient at each of the student's steps; its parameters are constants of the next step."""
    parameters = tracked(start)
    for step, rows in enumerate(batches):
        slopes = student.gradients(parameters, data, rows, step, graph)
        yield slopes
        with torch.no_grad():
            moved = {name: p - student.lr(name, data) * slopes[name] for name, p in parameters.items()}
        del slopes
        parameters = tracked(moved)
