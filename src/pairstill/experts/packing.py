"""Six-bit numbers: a tensor in a fifth of its bytes, to about two hundredths of its spread.

Values are cut into blocks of 64. A block keeps its largest magnitude m as a 16-bit float, and each value as one of the
63 whole numbers k in -31..31, standing for k m / 31. Four such numbers fill three bytes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCK = 64
LARGEST = 31
BYTES = 3 * BLOCK // 4


def pack(values: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [blocks, 48] as bytes and scales [blocks] in bfloat16."""
    flat = values.detach().float().reshape(-1)
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % BLOCK)).reshape(-1, BLOCK)
    scales = (blocks.abs().amax(dim=1) / LARGEST).to(torch.bfloat16)
    steps = scales.float()[:, None]
    whole = torch.where(steps > 0, blocks / steps, 0.0).round().clamp(-LARGEST, LARGEST)
    first, second, third, fourth = (whole + LARGEST).to(torch.int32).reshape(len(blocks), 4, -1).unbind(1)
    left, right = first | second << 6, third | fourth << 6  # two numbers of 12 bits
    codes = torch.cat([left & 255, right & 255, left >> 8 | right >> 8 << 4], dim=1)
    return codes.to(torch.uint8), scales


def unpack(codes: Tensor, scales: Tensor, shape: torch.Size) -> Tensor:
    """What `pack` made codes and scales of, as nearly as they can say it."""
    return unpack_blocks(codes, scales).reshape(-1)[: math.prod(shape)].reshape(shape)


def unpack_blocks(codes: Tensor, scales: Tensor) -> Tensor:
    """The values of each block, [blocks, 64]; of many layers at once, all cores share the work."""
    parts = codes.view(-1, 3, BLOCK // 4)
    high = parts[:, 2].to(torch.int16)
    left = parts[:, 0] | (high & 15) << 8  # two numbers of 12 bits
    right = parts[:, 1] | (high >> 4) << 8
    values = torch.empty(len(parts), 4, BLOCK // 4)
    for place, numbers in enumerate((left & 63, left >> 6, right & 63, right >> 6)):
        values[:, place] = numbers
    return values.view(-1, BLOCK).sub_(LARGEST).mul_(scales.float()[:, None])
