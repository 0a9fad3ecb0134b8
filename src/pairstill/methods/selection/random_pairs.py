"""Random pairs: the floor that every method has to beat."""

from __future__ import annotations

from dataclasses import dataclass

from pairstill.distilled import DistilledSet
from pairstill.encoded import EncodedSplit
from pairstill.methods.contract import Context, Method, finished
from pairstill.methods.start import start


@dataclass(frozen=True)
class Settings:
    """Nothing to set."""


def fit(pairs: EncodedSplit, context: Context) -> DistilledSet:
    """Pairs of different pictures, each with one of its captions, drawn at random."""
    return finished(pairs, context, "random", *start(pairs, context, "random"))


METHOD = Method("real pairs drawn at random", Settings, fit)
