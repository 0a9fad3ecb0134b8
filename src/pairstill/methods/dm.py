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

from pairstill.distilled import DistilledSet
from pairstill.encoded import EncodedSplit
from pairstill.losses import FEATURE_SETS
from pairstill.methods.checks import check_settings
from pairstill.methods.contract import Context, Method
from pairstill.methods.mdm import Init
from pairstill.methods.under_teachers import distil_under_teachers

MATCHED = {"modalities": ("singles",), "joint": ("joint",), "both": ("singles", "joint")}
"""What `match` means, as names of `losses.FEATURE_SETS`."""


@dataclass(frozen=True)
class Settings:
    """Settings of DM; where MDM has the same setting, its default.

    Args:
        iterations: Updates of the synthetic pairs.
        init: Where the pairs start.
        teacher: Which weights encode, at each iteration.
        merged_experts: How many experts a merged teacher is made of.
        alpha: How far a merged teacher goes from the anchor to its experts (Eq. 5).
        match: Whose means are matched: each modality's, those of agreement and discrepancy (joint), or both.
        image_lr: Step size for pixels.
        text_lr: Step size for text embeddings.
        momentum: Momentum of SGD on the pairs.
        clip: Largest norm of the whole gradient.
        real_batch: Real pairs in an iteration.
        check_every: Iterations between two scores on the split that the protocol chooses by.
    """

    iterations: int = 200
    init: Init = "kmeans"
    teacher: Literal["merged", "weighted-sum", "fine-tuned", "pretrained"] = "merged"
    merged_experts: int = 2
    alpha: float = 0.5
    match: Literal["modalities", "joint", "both"] = "both"
    image_lr: float = 100.0
    text_lr: float = 100.0
    momentum: float = 0.5
    clip: float = 1.0
    real_batch: int = 64
    check_every: int = 25

    def __post_init__(self) -> None:
        counts = {"iterations": 1, "merged_experts": 2, "real_batch": 1, "check_every": 1}
        check_settings(self, counts, ("clip",))


def fit(pairs: EncodedSplit, context: Context) -> DistilledSet:
    """Distil `pairs` into `context.count` synthetic pairs."""
    return distil_under_teachers(pairs, context, "dm", objective)


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


METHOD = Method("match the means of real and synthetic features (DM)", Settings, fit, needs_bank=True)
