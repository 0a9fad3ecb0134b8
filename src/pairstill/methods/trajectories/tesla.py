"""TESLA (Cui et al., 2023) with the weighted BCE: trajectory matching in the memory of one step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pairstill.distilled import DistilledSet
from pairstill.encoded import EncodedSplit
from pairstill.methods.contract import Context, Method
from pairstill.methods.matching import MatchingSettings, match


@dataclass(frozen=True)
class Settings(MatchingSettings):  # noqa: D101 (its settings are described there)
    __doc__ = MatchingSettings.__doc__


def fit(pairs: EncodedSplit, context: Context) -> DistilledSet:
    """Students train with the weighted BCE, each picture matching its own text only."""
    identity = torch.eye(context.count)
    return match(pairs, context, "tesla", exact=False, similarity=lambda learnt: identity, learnable={})


METHOD = Method("match trajectories step by step, with weighted BCE (TESLA)", Settings, fit, needs_bank=True)
