"""MTT-VL (Wu et al., 2023): match experts' trajectories with the gradient of the whole unroll."""

from __future__ import annotations

from dataclasses import dataclass

from pairstill.distilled import DistilledSet
from pairstill.encoded import EncodedSplit
from pairstill.methods.contract import Context, Method
from pairstill.methods.matching import MatchingSettings, match


@dataclass(frozen=True)
class Settings(MatchingSettings):  # noqa: D101 (its settings are described there)
    __doc__ = MatchingSettings.__doc__

    image_lr: float = 1000.0
    text_lr: float = 1000.0


def fit(pairs: EncodedSplit, context: Context) -> DistilledSet:
    """Students train with InfoNCE; memory grows with the student's steps."""
    return match(pairs, context, "mtt-vl", exact=True, similarity=lambda learnt: None, learnable={})


METHOD = Method("match experts' trajectories through the whole unroll (MTT-VL)", Settings, fit, needs_bank=True)
