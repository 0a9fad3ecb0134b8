"""Rows: matrices that are read some rows at a time, wherever they are, so that data may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pairstill.runtime.seeds import generator

ROWS_AT_ONCE = 16384
SAMPLED_ROWS = 131_072
"""Enough to tell the mean and the spread of any number of rows."""


class RowMatrix(Protocol):
    """A matrix [n, d] as far as rows can be asked for: a tensor is one; what is asked for is in memory."""

    @property
    def shape(self) -> Sequence[int]:
        """[n, d]."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Tensor | slice, /) -> Tensor: ...


@dataclass(frozen=True)
class StoredMatrix:
    """A matrix on disk, memory-mapped."""

    matrix: NDArray[Any]

    @property
    def shape(self) -> Sequence[int]:
        """[n, d]."""
        return self.matrix.shape

    def __len__(self) -> int:
        return len(self.matrix)

    def __getitem__(self, rows: Tensor | slice, /) -> Tensor:
        # The mapping stays read-only: the system would count a private, writable one as memory, and refuse a large one.
        if isinstance(rows, slice):
            return torch.from_numpy(np.array(self.matrix[rows]))
        return torch.from_numpy(np.take(self.matrix, rows.numpy(), axis=0))


@dataclass(frozen=True)
class RowSubset:
    """Some rows of others, by number."""

    of: RowMatrix
    index: Tensor

    @property
    def shape(self) -> Sequence[int]:
        """[n, d]."""
        return len(self.index), *self.of.shape[1:]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: Tensor | slice, /) -> Tensor:
        return self.of[self.index[rows]]


@dataclass(frozen=True)
class UnitRows:
    """Others, several of them side by side, each normalised."""

    parts: tuple[RowMatrix, ...]

    @property
    def shape(self) -> Sequence[int]:
        """[n, sum of d]."""
        return len(self), sum(part.shape[1] for part in self.parts)

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, rows: Tensor | slice, /) -> Tensor:
        return torch.cat([F.normalize(part[rows], dim=-1) for part in self.parts], dim=-1)


def blocks(rows: RowMatrix, size: int | None = None) -> Iterator[tuple[int, Tensor]]:
    """All rows in order, at most `size` (by default `ROWS_AT_ONCE`) at a time, with the number of the first."""
    size = size or ROWS_AT_ONCE
    for start in range(0, len(rows), size):
        yield start, rows[start : start + size]


def in_memory(rows: RowMatrix) -> Tensor:
    """All rows as one tensor of floats, made without a second copy."""
    whole = torch.empty(*rows.shape)
    for start, block in blocks(rows):
        whole[start : start + len(block)] = block
    return whole


def sample(rows: RowMatrix, most: int, seed: int) -> Tensor:
    """At most `most` rows, in memory: all of them where there are no more, else drawn from the seed, in order."""
    if len(rows) <= most:
        return in_memory(rows)
    drawn = torch.randperm(len(rows), generator=generator(seed, "sample"))[:most]
    return in_memory(RowSubset(rows, drawn.sort().values))
