"""MTT-VL (Wu et al., 2023): match experts' trajectories with the gradient of the whole unroll."""

from __future__ import annotations

from dataclasses import dataclass

from pairstill.distillation.contract import Context, Method
from pairstill.distillation.trajectory_matching import TrajectoryMatchingSettings, match_trajectories
from pairstill.features.encoded_dataset import EncodedSplit
from pairstill.sets.distilled_set import DistilledSet


@dataclass(frozen=True)
class Settings(TrajectoryMatchingSettings):  # noqa: D101 (its settings are described there)
    __doc__ = TrajectoryMatchingSettings.__doc__

    image_lr: float = 1000.0
    text_lr: float = 1000.0


def fit(pairs: EncodedSplit, context: Context) -> DistilledSet:
    """Students train with InfoNCE; memory grows with the student's steps."""
    return match_trajectories(pairs, context, exact=True, similarity=lambda learnt: None, learnable={})


METHOD = Method(
    "mtt-vl", "match experts' trajectories through the whole unroll (MTT-VL)", Settings, fit, needs_bank=True
)
