"""A large batch through a frozen network in blocks, so that memory is that of one block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pairstill.errors import PairstillError

PIXELS_AT_ONCE = 100 * 224 * 224
"""EfficientNet-Lite0 keeps about 5 GiB for the backward pass of this many pixels."""

Precision = Literal["float32", "mixed"]


@dataclass(frozen=True)
class Passes:
    """How images pass through a frozen network. Nothing in here changes what is computed, but for rounding.

    Args:
        micro_batch: Images at a time; as many as fit in about 5 GiB when None.
        precision: `mixed` computes in bfloat16 what bears it, for GPUs.
    """

    micro_batch: int | None = None
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        if self.micro_batch is not None and self.micro_batch < 1:
            raise PairstillError(f"--micro-batch must be at least 1, not {self.micro_batch}.")

    def __call__(self, network: nn.Module, pictures: Tensor) -> Tensor:
        """`network(pictures)` [N, d] for images [N, 3, H, W], in float32.

        With more than one block, only the last one's activations are kept: the backward pass begins there, and computes
        the others' again (up to one more forward pass in time). The first block is the one that may be smaller, so that
        as little as can be is computed twice. Images do not interact in a frozen network, so the result and its
        gradient are the same.
        """
        with torch.autocast(pictures.device.type, torch.bfloat16, enabled=self.precision == "mixed"):
            return self._in_blocks(network, pictures).float()

    def _in_blocks(self, network: nn.Module, pictures: Tensor) -> Tensor:
        size = self.micro_batch or max(1, PIXELS_AT_ONCE // (pictures.shape[-1] * pictures.shape[-2]))
        if len(pictures) <= size:
            return torch.as_tensor(network(pictures))
        whole, rest = divmod(len(pictures), size)
        blocks = pictures.split(([rest] if rest else []) + [size] * whole)
        if not (torch.is_grad_enabled() and pictures.requires_grad):
            return torch.cat([network(block) for block in blocks])
        *early, last = blocks
        return torch.cat([*(checkpoint(network, block, use_reentrant=False) for block in early), network(last)])
