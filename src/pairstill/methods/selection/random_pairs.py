"""Random pairs: the floor that every method has to beat."""

from __future__ import annotations

from dataclasses import dataclass

from pairstill.distillation.contract import Context, Method, finished
from pairstill.distillation.initial_pairs import initial_pairs
from pairstill.features.encoded_dataset import EncodedSplit
from pairstill.sets.distilled_set import DistilledSet


@dataclass(frozen=True)
class Settings:
    """Nothing to set."""


def fit(pairs: EncodedSplit, context: Context) -> DistilledSet:
    """Pairs of different images, each with one of its captions, drawn at random."""
    return finished(pairs, context, *initial_pairs(pairs, context, "random"))


METHOD = Method("random", "real pairs drawn at random", Settings, fit)
