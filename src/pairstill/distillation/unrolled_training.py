"""A student practises on the pairs and is examined on real ones; the exam's gradient goes back through the practice.

The student's training is that of every student here, SGD with momentum m, weight decay w and step size lr:

    v_{t+1} = m v_t + g(theta_t) + w theta_t        theta_{t+1} = theta_t - lr v_{t+1}

g being the gradient of its loss on a batch of synthetic pairs. From the slope of the exam's loss at the end the
adjoints a of theta and b of v are carried back, step by step:

    b <- b - lr a        a <- a + w b + (dg/dtheta)' b        pairs += (dg/dpairs)' b        b <- m b

The graph of each step's own gradient is kept on the way out and let go of on the way back: the result is the gradient
of the whole unroll. A practice of more than `KEPT_STEPS` steps is cut into stretches of so many; where each begins is
kept, and all but the last are walked again on the way back, so that memory is that of one stretch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pairstill.methods.differentiable import Material, Parameters, Student, accumulate, tracked

Exam = Callable[[Parameters], Tensor]
"""The loss on real pairs of a student with these parameters."""

Values = list[Tensor]
"""The parameters' values, or what belongs to each, in their order."""


KEPT_STEPS = 64
"""So many steps' graphs are kept at once: 1.3 GB for students 512 wide and batches of 128."""


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


@dataclass(frozen=True)
class Step:
    """A step that was taken: the parameters before it, and the slopes that it went by, as functions of them."""

    before: Parameters
    slopes: Values


def through_practice(
    student: Student, start: Parameters, data: Material, batches: Sequence[Tensor], inertia: Inertia, exam: Exam
) -> Tensor:
    """The exam's loss after a step on each batch; the gradients of `data` are added to it in place.

    The step sizes are constants.
    """
    names = list(start)
    lrs = [student.lr(name, data).item() for name in names]
    stretches = [range(begin, min(begin + KEPT_STEPS, len(batches))) for begin in range(0, len(batches), KEPT_STEPS)]
    here = State(list(start.values()), [torch.zeros_like(value) for value in start.values()])
    begins: list[State] = []
    steps: list[Step] = []
    for stretch in stretches:
        begins.append(here)
        steps, here = _practise(student, names, here, data, batches, stretch, inertia, lrs, stretch is stretches[-1])
    last = _tracked(names, here.parameters)
    loss = exam(last)
    theta = _slopes([loss], last, data)
    speed = [torch.zeros_like(value) for value in theta]
    for stretch in reversed(stretches):
        begin = begins.pop()
        steps = steps or _practise(student, names, begin, data, batches, stretch, inertia, lrs, graph=True)[0]
        while steps:
            step = steps.pop()
            torch._foreach_sub_(speed, torch._foreach_mul(theta, lrs))
            torch._foreach_add_(theta, _slopes(step.slopes, step.before, data, speed))
            torch._foreach_add_(theta, speed, alpha=inertia.weight_decay)
            torch._foreach_mul_(speed, inertia.momentum)
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
    graph: bool,
) -> tuple[list[Step], State]:
    """The student after a stretch and, with `graph`, its steps."""
    here, velocity = state.parameters, [value.clone() for value in state.velocity]
    steps = []
    for number in stretch:
        before = _tracked(names, here)
        slopes = list(student.gradients(before, data, batches[number], number, graph).values())
        if graph:
            steps.append(Step(before, slopes))
        torch._foreach_mul_(velocity, inertia.momentum)
        torch._foreach_add_(velocity, [slope.detach() for slope in slopes])
        torch._foreach_add_(velocity, here, alpha=inertia.weight_decay)
        here = list(torch._foreach_sub(here, torch._foreach_mul(velocity, lrs)))
    return steps, State(here, velocity)


def _slopes(outputs: Values, here: Parameters, data: Material, weights: Values | None = None) -> Values:
    """The parameters' slopes of weighted outputs; those of the pairs are added to the pairs' gradients."""
    leaves = list(data.leaves().values())
    found = torch.autograd.grad(outputs, [*here.values(), *leaves], weights, allow_unused=True)
    for leaf, grad in zip(leaves, found[len(here) :], strict=True):
        if grad is not None:
            accumulate(leaf, grad)
    pairs = zip(here.values(), found, strict=False)
    return [torch.zeros_like(value) if grad is None else grad for value, grad in pairs]


def _tracked(names: Iterable[str], values: Values) -> Parameters:
    return tracked(dict(zip(names, values, strict=True)))
