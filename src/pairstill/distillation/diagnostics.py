"""Diagnostics of finished pairs for the report: cosines in a teacher's or student's space, and merge ratios.

Nothing is chosen by them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pairstill.experts.bank import Bank
from pairstill.experts.model_stock import merge_ratio
from pairstill.experts.teacher_weights import draw_checkpoints
from pairstill.training.losses import agreement, discrepancy

SHOWN_REAL_PAIRS = 500
BINS = 40
RATIO_DRAWS = 64

Vectors = tuple[Tensor, Tensor]


def pair_diagnostics(real: Vectors, initial: Vectors, distilled: Vectors) -> dict[str, Any]:
    """Histograms over -1...1 of three cosines, for real, initial and distilled pairs: unit vectors (images, texts).

    `match`: between a pair's image and its text. `agreement`, `discrepancy`: between the joint features of two
    different pairs. Where the paper's energies are small, the real and the distilled ones look alike.
    """
    kinds = {"real": real, "initial": initial, "distilled": distilled}
    found: dict[str, Any] = {"bins": BINS, "match": {}, "agreement": {}, "discrepancy": {}}
    for name, (images, texts) in kinds.items():
        found["match"][name] = _histogram((images * texts).sum(dim=-1))
        found["agreement"][name] = _histogram(_between(agreement(images, texts)))
        found["discrepancy"][name] = _histogram(_between(discrepancy(images, texts)))
    return found


def merge_ratios_by_layer(bank: Bank, random: torch.Generator, experts: int) -> list[dict[str, Any]]:
    """The merge ratio t of every layer: its mean and deviation over random draws of experts."""
    drawn = []
    for _ in range(RATIO_DRAWS):
        rows = draw_checkpoints(bank, experts, random)
        drawn.append(merge_ratio(bank.gram[:, rows][:, :, rows]))
    ratios = torch.stack(drawn)
    means, spreads = ratios.mean(dim=0).tolist(), ratios.std(dim=0).tolist()
    return [{"layer": n, "mean": m, "std": s} for n, m, s in zip(bank.anchor, means, spreads, strict=True)]


def _between(features: Tensor) -> Tensor:
    """Cosines of all pairs of different rows."""
    rows, columns = torch.triu_indices(len(features), len(features), offset=1)
    return (features @ features.T)[rows, columns]


def _histogram(cosines: Tensor) -> list[float]:
    """The share of cosines in each of `BINS` equal parts of -1...1."""
    counts = torch.histc(cosines.float().cpu().clamp(-1, 1), BINS, -1, 1)
    return [round(share, 5) for share in (counts / max(1, len(cosines))).tolist()]
