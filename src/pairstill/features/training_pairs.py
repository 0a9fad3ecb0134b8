"""Pairs to train on, as tensors: what the image tower reads, text embeddings, and the links between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pairstill.runtime.row_matrix import RowMatrix


class Inputs(Protocol):
    """What the image tower reads, by row: features in towers `heads`, normalised pixels in `full`."""

    def __len__(self) -> int: ...

    def take(self, rows: Tensor, random: torch.Generator | None = None) -> Tensor:
        """The rows as one tensor; with a generator, augmented where these inputs have an augmentation."""
        ...


@dataclass(frozen=True)
class TensorInputs:
    """Inputs that are rows of a matrix: cached features, or the images of a distilled set."""

    tensor: RowMatrix
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None

    def __len__(self) -> int:
        return len(self.tensor)

    def take(self, rows: Tensor, random: torch.Generator | None = None) -> Tensor:
        """See `Inputs`."""
        chosen = self.tensor[rows]
        return self.augment(chosen, random) if self.augment and random else chosen


@dataclass(frozen=True)
class TrainingPairs:
    """Pairs to train on: `links` [P, 2] joins rows of `inputs` to rows of `texts` [C, d_t].

    With `similarity` [P, P], soft targets of each pair's image for each pair's text, the loss is the weighted
    binary cross-entropy against them; without it InfoNCE.
    """

    inputs: Inputs
    texts: RowMatrix
    links: Tensor
    similarity: Tensor | None = None
