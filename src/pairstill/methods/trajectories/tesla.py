"""TESLA (Cui et al., 2023) with the weighted BCE: trajectory matching in the memory of one step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pairstill.distillation.contract import Context, Method
from pairstill.distillation.trajectory_matching import TrajectoryMatchingSettings, match_trajectories
from pairstill.features.encoded_dataset import EncodedSplit
from pairstill.sets.distilled_set import DistilledSet


@dataclass(frozen=True)
class Settings(TrajectoryMatchingSettings):  # noqa: D101 (its settings are described there)
    __doc__ = TrajectoryMatchingSettings.__doc__


def fit(pairs: EncodedSplit, context: Context) -> DistilledSet:
    """Students train with the weighted BCE, each image matching its own text only."""
    identity = torch.eye(context.count)
    return match_trajectories(pairs, context, exact=False, similarity=lambda learnt: identity, learnable={})


METHOD = Method("tesla", "match trajectories step by step, with weighted BCE (TESLA)", Settings, fit, needs_bank=True)
