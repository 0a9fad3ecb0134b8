"""Recall at K for retrieval in both directions, with several correct answers and ties that never help."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Recall:
    """Percentages. ir: a caption finds an image; tr: an image finds a caption; mean: of the six."""

    ir1: float
    ir5: float
    ir10: float
    tr1: float
    tr5: float
    tr10: float

    @property
    def mean(self) -> float:
        """The mean of the six recalls: the figure that methods are compared by."""
        return (self.ir1 + self.ir5 + self.ir10 + self.tr1 + self.tr5 + self.tr10) / 6

    def to_dict(self) -> dict[str, float]:
        """The six recalls and their mean."""
        return {**asdict(self), "mean": self.mean}


def best_ranks(scores: Tensor, correct: Tensor) -> Tensor:
    """Rank (from 0) of each query's best correct answer.

    Wrong answers that tie with it count as ahead of it, so that a model which scores everything alike gets
    nothing, and neither does one whose scores are NaN. Queries without a correct answer are not allowed.

    Args:
        scores: [Q, A] similarity of each query to each answer.
        correct: [Q, A] booleans.
    """
    best = scores.masked_fill(~correct, -torch.inf).amax(dim=1, keepdim=True)
    return (~(scores < best) & ~correct).sum(dim=1)


def recall(images: Tensor, texts: Tensor, links: Tensor) -> Recall:
    """Recall from embeddings.

    Args:
        images: Unit vectors [I, d].
        texts: Unit vectors [C, d].
        links: [P, 2] rows (image, caption) that belong together; any number per image and per caption.
    """
    correct = torch.zeros(len(images), len(texts), dtype=torch.bool, device=images.device)
    correct[links[:, 0], links[:, 1]] = True
    scores = images @ texts.T
    ir = best_ranks(scores.T, correct.T)
    tr = best_ranks(scores, correct)
    return Recall(*(_at(ranks, k) for ranks in (ir, tr) for k in (1, 5, 10)))


def _at(ranks: Tensor, k: int) -> float:
    return 100 * (ranks < k).double().mean().item()
