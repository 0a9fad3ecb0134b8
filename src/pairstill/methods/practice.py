"""A student practises on the pairs and is examined on real ones; the exam's gradient goes back through the practice.

The student's training is that of every student here, SGD with momentum m, weight decay w and step size lr:

    v_{t+1} = m v_t + g(theta_t) + w theta_t        theta_{t+1} = theta_t - lr v_{t+1}

g being the gradient of its loss on a batch of synthetic pairs. From the slope of the exam's loss at the end the
adjoints a of theta and b of v are carried back, step by step:

    b <- b - lr a        a <- a + w b + (dg/dtheta)' b        pairs += (dg/dpairs)' b        b <- m b

Only the parameters before each step are kept, and each step's graph is built when its turn comes: the gradient is that
of the whole unroll, in the memory of one step and of its parameters. A practice of more than `KEPT_STEPS` steps is cut
into stretches of so many; where each begins is kept, and all but the last are walked again on the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pairstill.methods.trajectory import Material, Parameters, Student, accumulate, tracked

Exam = Callable[[Parameters], Tensor]
"""The loss on real pairs of a student with these parameters."""

Values = list[Tensor]
"""The parameters' values, or what belongs to each, in their order."""


KEPT_STEPS = 256
"""So many steps' parameters are kept at once: 1.4 GB for students 512 wide."""


@dataclass(frozen=True)
class Inertia:
    """What a student's training has besides its step size."""

    momentum: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True)
class State:
    """A student between two steps."""

    parameters: Values
    velocity: Values


def through_practice(
    student: Student, start: Parameters, data: Material, batches: Sequence[Tensor], inertia: Inertia, exam: Exam
) -> Tensor:
    """The exam's loss after a step on each batch; the gradients of `data` are added to it in place."""
    names = list(start)
    lrs = [student.lr(name, data).item() for name in names]

    def walk(state: State, stretch: range) -> tuple[list[Values], State]:
        return _practise(student, names, state, data, batches, stretch, inertia, lrs)

    stretches = [range(begin, min(begin + KEPT_STEPS, len(batches))) for begin in range(0, len(batches), KEPT_STEPS)]
    here = State(list(start.values()), [torch.zeros_like(value) for value in start.values()])
    begins: list[State] = []
    passed: list[Values] = []
    for stretch in stretches:
        begins.append(here)
        passed = []  # let go of the stretch before, not only when this one is there
        passed, here = walk(here, stretch)
    after = here.parameters
    last = _tracked(names, after)
    loss = exam(last)
    theta = list(torch.autograd.grad(loss, list(last.values())))
    speed = [torch.zeros_like(value) for value in theta]
    for stretch in reversed(stretches):
        begin = begins.pop()
        passed = passed or walk(begin, stretch)[0]
        for step in reversed(stretch):
            before = passed.pop()
            _add_to_lrs(student, names, data, theta, before, after)
            torch._foreach_sub_(speed, torch._foreach_mul(theta, lrs))
            pulled = _pull_back(student, _tracked(names, before), data, batches[step], step, speed)
            torch._foreach_add_(theta, pulled)
            torch._foreach_add_(theta, speed, alpha=inertia.weight_decay)
            torch._foreach_mul_(speed, inertia.momentum)
            after = before
    return loss.detach()


def _practise(
    student: Student,
    names: Sequence[str],
    state: State,
    data: Material,
    batches: Sequence[Tensor],
    stretch: range,
    inertia: Inertia,
    lrs: Sequence[float],
) -> tuple[list[Values], State]:
    """The parameters before each step of a stretch, and the student after the last."""
    here, velocity = state.parameters, [value.clone() for value in state.velocity]
    passed = []
    for step in stretch:
        passed.append(here)
        slopes = student.gradients(_tracked(names, here), data, batches[step], step, graph=False)
        torch._foreach_mul_(velocity, inertia.momentum)
        torch._foreach_add_(velocity, list(slopes.values()))
        torch._foreach_add_(velocity, here, alpha=inertia.weight_decay)
        here = list(torch._foreach_sub(here, torch._foreach_mul(velocity, lrs)))
    return passed, State(here, velocity)


def _pull_back(student: Student, here: Parameters, data: Material, rows: Tensor, step: int, speed: Values) -> Values:
    """(dg/dtheta)' b of one step; (dg/dpairs)' b is added to the pairs' gradients."""
    slopes = student.gradients(here, data, rows, step, graph=True)
    leaves = list(data.leaves().values())
    wanted = [*here.values(), *leaves]
    found = torch.autograd.grad(list(slopes.values()), wanted, speed, allow_unused=True)
    for leaf, grad in zip(leaves, found[len(here) :], strict=True):
        if grad is not None:
            accumulate(leaf, grad)
    pairs = zip(here.values(), found, strict=False)
    return [torch.zeros_like(value) if grad is None else grad for value, grad in pairs]


def _tracked(names: Iterable[str], values: Values) -> Parameters:
    return tracked(dict(zip(names, values, strict=True)))


def _add_to_lrs(
    student: Student, names: Sequence[str], data: Material, theta: Values, before: Values, after: Values
) -> None:
    """Where the student's step sizes are learnt: d loss / d lr = -<a, v>, over the parameters of each tower.

    Of v it is known that -lr v was the step.
    """
    for lr, of_text in ((data.image_lr, False), (data.text_lr, True)):
        if lr.requires_grad:
            towers = zip(names, theta, before, after, strict=True)
            parts = [(a * (new - old)).sum() for name, a, old, new in towers if student.is_text(name) is of_text]
            accumulate(lr, torch.stack(parts).sum() / lr.detach())
