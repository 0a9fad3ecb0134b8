"""Unrolled training: the gradient of an outer loss goes back through a student's whole inner loop.

The inner loop is the training that every student has here, SGD with momentum m, weight decay w and step size lr:

    v_{t+1} = m v_t + g(theta_t) + w theta_t        theta_{t+1} = theta_t - lr v_{t+1}

g is the gradient of the student's loss on a batch of synthetic pairs. The outer loss reads the trained parameters. From
its gradient, the adjoints a of theta and b of v are carried back, step by step:

    b <- b - lr a        a <- a + w b + (dg/dtheta)' b        pairs += (dg/dpairs)' b        b <- m b

The graph of each step's own gradient is kept on the way forward and freed on the way back. The result is the exact
gradient of the whole loop. A loop of more than `KEPT_STEPS` steps is cut into segments of that length, as gradient
checkpointing does: the state at the beginning of each is kept, and all but the last are run again on the way back, so
that memory is that of one segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pairstill.distillation.functional_student import FunctionalStudent, Parameters, StudentData, accumulate, as_leaves

OuterLoss = Callable[[Parameters], Tensor]
"""The loss on real pairs of a student with these parameters."""

Values = list[Tensor]
"""The parameters' values, or what belongs to each, in their order."""


KEPT_STEPS = 64
"""The graphs of so many steps are kept at once: 1.3 GB for students 512 wide and batches of 128."""


@dataclass(frozen=True)
class SgdSettings:
    """What a student's SGD has besides its step size."""

    momentum: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True)
class State:
    """A student between two steps."""

    parameters: Values
    velocity: Values


@dataclass(frozen=True)
class InnerStep:
    """A step that was taken: the parameters before it, and their gradients as functions of them."""

    before: Parameters
    gradients: Values


def backward_through_training(
    student: FunctionalStudent,
    start: Parameters,
    data: StudentData,
    batches: Sequence[Tensor],
    sgd: SgdSettings,
    outer_loss: OuterLoss,
) -> Tensor:
    """The outer loss after a step on each batch; the gradients of `data` are added to it in place.

    The step sizes are constants.
    """
    names = list(start)
    lrs = [student.lr(name, data).item() for name in names]
    segments = [range(begin, min(begin + KEPT_STEPS, len(batches))) for begin in range(0, len(batches), KEPT_STEPS)]
    here = State(list(start.values()), [torch.zeros_like(value) for value in start.values()])
    begins: list[State] = []
    steps: list[InnerStep] = []
    for segment in segments:
        begins.append(here)
        steps, here = _train(student, names, here, data, batches, segment, sgd, lrs, segment is segments[-1])
    last = _named_leaves(names, here.parameters)
    loss = outer_loss(last)
    theta = _gradients([loss], last, data)
    speed = [torch.zeros_like(value) for value in theta]
    for segment in reversed(segments):
        begin = begins.pop()
        steps = steps or _train(student, names, begin, data, batches, segment, sgd, lrs, graph=True)[0]
        while steps:
            step = steps.pop()
            torch._foreach_sub_(speed, torch._foreach_mul(theta, lrs))
            torch._foreach_add_(theta, _gradients(step.gradients, step.before, data, speed))
            torch._foreach_add_(theta, speed, alpha=sgd.weight_decay)
            torch._foreach_mul_(speed, sgd.momentum)
    return loss.detach()


def _train(
    student: FunctionalStudent,
    names: Sequence[str],
    state: State,
    data: StudentData,
    batches: Sequence[Tensor],
    segment: range,
    sgd: SgdSettings,
    lrs: Sequence[float],
    graph: bool,
) -> tuple[list[InnerStep], State]:
    """The student after a segment and, with `graph`, its steps."""
    here, velocity = state.parameters, [value.clone() for value in state.velocity]
    steps = []
    for number in segment:
        before = _named_leaves(names, here)
        gradients = list(student.gradients(before, data, batches[number], number, graph).values())
        if graph:
            steps.append(InnerStep(before, gradients))
        torch._foreach_mul_(velocity, sgd.momentum)
        torch._foreach_add_(velocity, [gradient.detach() for gradient in gradients])
        torch._foreach_add_(velocity, here, alpha=sgd.weight_decay)
        here = list(torch._foreach_sub(here, torch._foreach_mul(velocity, lrs)))
    return steps, State(here, velocity)


def _gradients(outputs: Values, here: Parameters, data: StudentData, weights: Values | None = None) -> Values:
    """The parameters' gradients of weighted outputs; those of the pairs are added to the pairs' own."""
    leaves = list(data.leaves().values())
    found = torch.autograd.grad(outputs, [*here.values(), *leaves], weights, allow_unused=True)
    for leaf, grad in zip(leaves, found[len(here) :], strict=True):
        if grad is not None:
            accumulate(leaf, grad)
    pairs = zip(here.values(), found, strict=False)
    return [torch.zeros_like(value) if grad is None else grad for value, grad in pairs]


def _named_leaves(names: Iterable[str], values: Values) -> Parameters:
    return as_leaves(dict(zip(names, values, strict=True)))
