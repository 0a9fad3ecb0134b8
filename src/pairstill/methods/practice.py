"""A student practises on the pairs and is examined on real ones; the exam's gradient goes back through the practice.

The student's training is that of every student here, SGD with momentum m, weight decay w and step size lr:

    v_{t+1} = m v_t + g(theta_t) + w theta_t        theta_{t+1} = theta_t - lr v_{t+1}

g being the gradient of its loss on a batch of synthetic pairs. From the slope of the exam's loss at the end the
adjoints a of theta and b of v are carried back, step by step:

    b <- b - lr a        a <- a + w b + (dg/dtheta)' b        pairs += (dg/dpairs)' b        b <- m b

Only the parameters before each step are kept, and each step's graph is built when its turn comes: the gradient is that
of the whole unroll, in the memory of one step and of its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pairstill.methods.trajectory import Material, Parameters, Student, accumulate, tracked

Exam = Callable[[Parameters], Tensor]
"""The loss on real pairs of a student with these parameters."""


@dataclass(frozen=True)
class Inertia:
    """What a student's training has besides its step size."""

    momentum: float = 0.0
    weight_decay: float = 0.0


def through_practice(
    student: Student, start: Parameters, data: Material, batches: Sequence[Tensor], inertia: Inertia, exam: Exam
) -> Tensor:
    """The exam's loss after a step on each batch; the gradients of `data` are added to it in place."""
    passed = _practise(student, start, data, batches, inertia)
    after = passed.pop()
    last = tracked(after)
    loss = exam(last)
    theta = dict(zip(last, torch.autograd.grad(loss, list(last.values())), strict=True))
    speed = {name: torch.zeros_like(value) for name, value in theta.items()}
    for step in reversed(range(len(batches))):
        before = passed.pop()
        _add_to_lrs(student, data, theta, before, after)
        speed = {name: b - student.lr(name, data).detach() * theta[name] for name, b in speed.items()}
        pulled = _pull_back(student, before, data, batches[step], step, speed)
        theta = {name: a + inertia.weight_decay * speed[name] + pulled[name] for name, a in theta.items()}
        speed = {name: inertia.momentum * b for name, b in speed.items()}
        after = before
    return loss.detach()


def _practise(
    student: Student, start: Parameters, data: Material, batches: Sequence[Tensor], inertia: Inertia
) -> list[Parameters]:
    """The parameters before each step, and after the last."""
    passed = [start]
    velocity = {name: torch.zeros_like(value) for name, value in start.items()}
    for step, rows in enumerate(batches):
        slopes = student.gradients(tracked(passed[-1]), data, rows, step, graph=False)
        with torch.no_grad():
            velocity = {
                name: inertia.momentum * velocity[name] + slopes[name] + inertia.weight_decay * value
                for name, value in passed[-1].items()
            }
            passed.append({name: p - student.lr(name, data) * velocity[name] for name, p in passed[-1].items()})
    return passed


def _pull_back(
    student: Student, parameters: Parameters, data: Material, rows: Tensor, step: int, speed: Parameters
) -> Parameters:
    """(dg/dtheta)' b of one step; (dg/dpairs)' b is added to the pairs' gradients."""
    here = tracked(parameters)
    slopes = student.gradients(here, data, rows, step, graph=True)
    leaves = data.leaves()
    wanted = [*here.values(), *leaves.values()]
    found = torch.autograd.grad(list(slopes.values()), wanted, [speed[name] for name in slopes], allow_unused=True)
    for leaf, grad in zip(leaves.values(), found[len(here) :], strict=True):
        if grad is not None:
            accumulate(leaf, grad)
    pairs = zip(here.items(), found, strict=False)
    return {name: torch.zeros_like(value) if grad is None else grad for (name, value), grad in pairs}


def _add_to_lrs(student: Student, data: Material, theta: Parameters, before: Parameters, after: Parameters) -> None:
    """Where the student's step sizes are learnt: d loss / d lr = -<a, v>, over the parameters of each tower.

    Of v it is known that -lr v was the step.
    """
    for lr, of_text in ((data.image_lr, False), (data.text_lr, True)):
        if lr.requires_grad:
            names = [name for name in theta if student.is_text(name) is of_text]
            parts = [(theta[name] * (after[name] - before[name])).sum() for name in names]
            accumulate(lr, torch.stack(parts).sum() / lr.detach())
