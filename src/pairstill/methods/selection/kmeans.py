"""K-means pairs: of each cluster of joint features the pair nearest to its centre; where MDM starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pairstill.distillation.contract import Context, Method, finished
from pairstill.distillation.initial_pairs import initial_pairs
from pairstill.features.encoded_dataset import EncodedSplit
from pairstill.sets.distilled_set import DistilledSet


@dataclass(frozen=True)
class Settings:
    """Settings of k-means pairs.

    Args:
        space: Cluster joint features (as MDM does), or those of one modality.
    """

    space: Literal["joint", "image", "text"] = "joint"


def fit(pairs: EncodedSplit, context: Context) -> DistilledSet:
    """Real pairs, one from each of N clusters (Eq. 4)."""
    space = context.settings.space
    init = "kmeans" if space == "joint" else f"kmeans-{space}"
    return finished(pairs, context, *initial_pairs(pairs, context, init))


METHOD = Method("kmeans", "the real pair nearest to each k-means centre", Settings, fit)
