from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from pairstill.towers.folded_conv import FoldedConv

ACTIVATIONS = {None: nn.Identity(), math.inf: nn.ReLU(), 6.0: nn.ReLU6()}


def parts(seed: int = 0) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """A convolution and its batch norm, with statistics and scales of their own."""
    torch.manual_seed(seed)
    conv, norm = nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2), nn.BatchNorm2d(8).eval()
    with torch.no_grad():
        for value in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            value.copy_(0.5 + torch.rand(8))
    return conv.requires_grad_(False), norm.requires_grad_(False)


@pytest.mark.parametrize("ceiling", ACTIVATIONS)
@pytest.mark.parametrize("normed", [True, False])
def test_it_is_the_convolution_with_its_norm_and_its_activation(ceiling: float | None, normed: bool) -> None:
    conv, norm = parts()
    original = nn.Sequential(conv, *([norm] if normed else []), ACTIVATIONS[ceiling])
    folded = FoldedConv(conv, norm if normed else None, ceiling)
    ours, theirs = (8 * torch.randn(2, 4, 9, 9, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    found, expected = folded(ours.requires_grad_()), original(theirs.requires_grad_())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    if ceiling == 6.0:
        assert (expected == 6).any()  # else the test would not see it
    (found**2).sum().backward()
    (expected**2).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-3)
    assert not any(value.requires_grad for value in folded.parameters())


def test_what_is_folded_again_is_in_the_same_place() -> None:
    (conv, norm), (other, other_norm) = parts(), parts(1)
    folded, fresh = FoldedConv(conv, norm, 6.0), FoldedConv(other, other_norm, 6.0)
    places = folded.weight.data_ptr(), folded.bias.data_ptr()
    for name, value in fresh.named_buffers():
        folded.get_buffer(name).copy_(value)
    folded.refold()
    assert torch.equal(folded.weight, fresh.weight) and torch.equal(folded.bias, fresh.bias)
    assert places == (folded.weight.data_ptr(), folded.bias.data_ptr())
