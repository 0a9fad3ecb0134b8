"""Model Stock's merge: anchor and experts to one teacher, layer by layer, by how far the experts agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Parameters = Mapping[str, Tensor]


def merge_ratio(gram: Tensor) -> Tensor:
    """The ratio t of each layer from the inner products of the experts' displacements (Eq. 5).

    t = N c / (1 + (N - 1) c), with c the mean cosine between two different displacements; for N = 2 this is
    2<D1, D2> / (|D1||D2| + <D1, D2>). Experts that conflict (c <= 0) stay at the anchor: t = 0, where the bare
    formula would turn negative and, at c = -1, singular. A layer that no expert moved has t = 0 as well.

    Args:
        gram: [L, N, N] inner products <D_i, D_j> of each layer, N >= 2.

    Returns:
        [L] ratios in [0, 1].
    """
    n = gram.shape[-1]
    norms = gram.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    scale = norms[:, :, None] * norms[:, None, :]
    cosines = torch.where(scale > 0, gram / scale.clamp(min=torch.finfo(gram.dtype).tiny), 0.0)
    off_diagonal = cosines.sum(dim=(-2, -1)) - cosines.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    mean = (off_diagonal / (n * (n - 1))).clamp(0, 1)
    return n * mean / (1 + (n - 1) * mean)


def merge(anchor: Parameters, experts: Sequence[Parameters], ratios: Tensor, alpha: float) -> dict[str, Tensor]:
    """theta* = theta_0 + alpha * t * mean_i(theta_i - theta_0), one t for each named parameter of the anchor."""
    merged = {}
    for ratio, (name, start) in zip(ratios.tolist(), anchor.items(), strict=True):
        mean = torch.lerp(experts[0][name], experts[1][name], 0.5)
        for count, expert in enumerate(experts[2:], 3):
            mean.lerp_(expert[name], 1 / count)
        merged[name] = torch.lerp(start, mean, alpha * ratio, out=mean)
    return merged
