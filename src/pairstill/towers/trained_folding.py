"""A trained image network, made fast: every convolution is one step with what stands behind it.

The network keeps the names of its parameters and buffers, so that weights go in and out as of the original.
"""

from __future__ import annotations

import copy
import warnings
import weakref
from typing import Any, cast

import torch
from torch import Tensor, nn

from pairstill.runtime.memory import keep_freed_memory
from pairstill.towers.folding import Plan, find_foldable, left_by, randomised, replace_layer, save_no_copies
from pairstill.towers.trained_conv import FoldedAwayNorm, TrainedConv

_PLANS: weakref.WeakKeyDictionary[nn.Module, dict[torch.Size, Plan]] = weakref.WeakKeyDictionary()
"""What was found for a network and a shape of its inputs: many copies are made of one network."""


def trained_copy(module: nn.Module, sample: Tensor) -> nn.Module:
    """A copy of a network, all of whose parameters are trained, that computes the same faster.

    Args:
        module: An image network; its batch norms have fixed statistics.
        sample: Something that it reads.
    """
    keep_freed_memory()
    plans = _PLANS.setdefault(module, {})
    if sample.shape not in plans:
        plans[sample.shape] = plan_for_training(module, sample)
    return _folded(copy.deepcopy(module).requires_grad_(True), plans[sample.shape])


def plan_for_training(module: nn.Module, sample: Tensor) -> Plan:
    """What can be folded: checked against the original, outputs and gradients, with random scales and statistics."""
    plan = {conv: norm for conv, norm in find_foldable(module, sample).items() if _has_numbers(module, conv)}
    if _is_faithful(module, plan, sample):
        return plan
    warnings.warn(f"{type(module).__name__} cannot be folded as planned; a slower form is trained.", stacklevel=3)
    return {}


def _has_numbers(module: nn.Module, conv: str) -> bool:
    """Whether a convolution's padding is given in pixels."""
    return not isinstance(cast(nn.Conv2d, module.get_submodule(conv)).padding, str)


def _folded(network: nn.Module, plan: Plan) -> nn.Module:
    """Fold a network in place."""
    for conv_name, norm_name in plan.items():
        conv, norm, ceiling = cast(nn.Conv2d, network.get_submodule(conv_name)), None, None
        if norm_name:
            original = cast(nn.BatchNorm2d, network.get_submodule(norm_name))
            rest, ceiling = left_by(original)
            norm = FoldedAwayNorm(original, rest)
            replace_layer(network, original, norm)
        replace_layer(network, conv, TrainedConv(conv, norm, ceiling))
    save_no_copies(network)
    return cast(nn.Module, network.to(memory_format=torch.channels_last))  # type: ignore[call-overload]


def _is_faithful(module: nn.Module, plan: Plan, sample: Tensor) -> bool:
    """Whether folding by this plan changes neither the output nor the gradients.

    Gradients have room for the ReLUs whose inputs rounding alone takes to the other side: 4 % were seen. In double
    precision nothing remains of that, but depthwise convolutions take half a minute.
    """
    probe = randomised(module).requires_grad_(True).eval()
    folded = _folded(copy.deepcopy(probe), plan).eval()
    found = [_output_and_gradients(network, sample) for network in (probe, folded)]
    (output, gradients), (folded_output, folded_gradients) = found
    return _alike(output, folded_output, 1e-3) and _alike(gradients, folded_gradients, 0.2)


def _output_and_gradients(network: nn.Module, sample: Tensor) -> tuple[Tensor, Tensor]:
    output: Tensor = network(sample)
    named = dict(network.named_parameters())
    found: Any = torch.autograd.grad(output.square().sum(), list(named.values()), allow_unused=True)
    return output.detach(), torch.cat([torch.zeros(1), *(grad.flatten() for grad in found if grad is not None)])


def _alike(one: Tensor, other: Tensor, within: float) -> bool:
    """Whether two tensors agree, within a share of their size."""
    return one.shape == other.shape and bool((one - other).norm() <= within * one.norm())
