"""DM: distribution matching of means, the plain ancestor of MDM.

Each iteration encodes real and synthetic pairs with a teacher and moves the synthetic pixels and text embeddings down
the gradient of

    sum over f of |mean f(real) - mean f(synthetic)|^2    (Eq. 1; for f of both modalities, Eq. 2)

with f the image's and the text's unit vector (`modalities`), the pair's agreement and discrepancy (`joint`), or all
four (`both`). The two vectors side by side would be no joint feature here: their mean is the two means side by side,
and who is paired with whom drops out. Agreement and discrepancy are normalised pair by pair, so that it stays.

The mean of a batch of real pairs stands for that of all; the gradient is then right on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pairstill.distillation.contract import Context, Method
from pairstill.distillation.distribution_matching import DistributionMatchingSettings, match_distributions
from pairstill.features.encoded_dataset import EncodedSplit
from pairstill.sets.distilled_set import DistilledSet
from pairstill.training.losses import FEATURE_SETS

MATCHED = {"modalities": ("singles",), "joint": ("joint",), "both": ("singles", "joint")}
"""What `match` means, as names of `losses.FEATURE_SETS`."""


@dataclass(frozen=True)
class Settings(DistributionMatchingSettings):  # noqa: D101
    __doc__ = f"""{(DistributionMatchingSettings.__doc__ or "").rstrip()}
        match: Whose means are matched: each modality's, those of agreement and discrepancy (joint), or both.
    """

    match: Literal["modalities", "joint", "both"] = "both"


def fit(pairs: EncodedSplit, context: Context) -> DistilledSet:
    """Distil `pairs` into `context.count` synthetic pairs."""
    return match_distributions(pairs, context, objective)


def objective(
    real: tuple[Tensor, Tensor], synthetic: tuple[Tensor, Tensor], settings: Settings
) -> tuple[Tensor, dict[str, float]]:
    """The total loss and its terms, from unit vectors (images, texts): real [m, d], synthetic [n, d]."""
    gaps = mean_gaps(real, synthetic, settings.match)
    loss = torch.stack(list(gaps.values())).sum()
    return loss, {"loss": loss.item(), **{name: gap.item() for name, gap in gaps.items()}}


def mean_gaps(real: tuple[Tensor, Tensor], synthetic: tuple[Tensor, Tensor], match: str) -> dict[str, Tensor]:
    """The terms of the loss by name, from unit vectors (images, texts): real [m, d], synthetic [n, d]."""
    gaps = {}
    for features in MATCHED[match]:
        of_real, of_synthetic = FEATURE_SETS[features](*real), FEATURE_SETS[features](*synthetic)
        for name in of_real:
            gaps[name] = mean_gap(of_real[name], of_synthetic[name])
    return gaps


def mean_gap(a: Tensor, b: Tensor) -> Tensor:
    """|mean of a - mean of b|^2 for a [m, d], b [n, d] (Eq. 1)."""
    return ((a.mean(dim=0) - b.mean(dim=0)) ** 2).sum()


METHOD = Method("dm", "match the means of real and synthetic features (DM)", Settings, fit, needs_bank=True)
