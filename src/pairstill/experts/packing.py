"""Six-bit numbers: a tensor in a fifth of its bytes, to about two hundredths of its spread.

Values are cut into blocks of 64. A block keeps its largest magnitude m as a 16-bit float, and each value as one of the
63 whole numbers k in -31..31, standing for k m / 31. Four such numbers fill three bytes.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK = 64
LARGEST = 31
BYTES = 3 * BLOCK // 4

Bytes = NDArray[np.uint8]


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
    parts: Bytes = codes.numpy().reshape(-1, 3, BLOCK // 4)
    high = parts[:, 2].astype(np.uint16)
    left = parts[:, 0] | (high & 15) << 8
    right = parts[:, 1] | high >> 4 << 8
    values = np.empty((len(parts), 4, BLOCK // 4), np.float32)
    firsts, seconds = _numbers()
    for place, numbers in ((0, left), (2, right)):
        np.take(firsts, numbers, out=values[:, place])
        np.take(seconds, numbers, out=values[:, place + 1])
    blocks = torch.from_numpy(values).reshape(len(parts), BLOCK) * scales.float()[:, None]
    return blocks.reshape(-1)[: math.prod(shape)].reshape(shape)


@cache
def _numbers() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The two whole numbers in each number of 12 bits."""
    every = np.arange(1 << 12)
    return (every & 63).astype(np.float32) - LARGEST, (every >> 6).astype(np.float32) - LARGEST
