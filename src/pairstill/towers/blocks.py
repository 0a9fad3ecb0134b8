"""A large batch through a frozen network in blocks, so that memory is that of one block."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

PIXELS_AT_ONCE = 100 * 224 * 224
"""EfficientNet-Lite0 keeps about 5 GiB for the backward pass of this many pixels."""


def in_blocks(network: nn.Module, pictures: Tensor, pixels_at_once: int = PIXELS_AT_ONCE) -> Tensor:
    """`network(pictures)` for pictures [N, 3, H, W], at most `pixels_at_once` pixels at a time.

    With more than one block, activations are not kept but computed again in the backward pass (one more forward
    pass in time). Pictures do not interact in a frozen network, so the result and its gradient are the same.
    """
    size = max(1, pixels_at_once // (pictures.shape[-1] * pictures.shape[-2]))
    blocks = pictures.split(size)
    if len(blocks) == 1:
        return torch.as_tensor(network(pictures))
    if not (torch.is_grad_enabled() and pictures.requires_grad):
        return torch.cat([network(block) for block in blocks])
    return torch.cat([checkpoint(network, block, use_reentrant=False) for block in blocks])
