"""Herding: real pairs whose mean stays nearest to the mean of all (Welling, 2009), as the paper runs it.

After the warm-up a pair's feature is its two unit vectors side by side. Pairs are taken one by one; each keeps the mean
of those taken so far as near as it can be to the mean of all.
"""

from __future__ import annotations

from pairstill import init
from pairstill.distilled import DistilledSet
from pairstill.encoded import EncodedSplit
from pairstill.methods.contract import Context, Method
from pairstill.methods.coreset import coreset
from pairstill.methods.warmup import Settings, warm_candidates
from pairstill.rows import in_memory


def fit(pairs: EncodedSplit, context: Context) -> DistilledSet:
    """Pairs of different pictures, in the order in which herding takes them."""
    rows, features = warm_candidates(pairs, context, context.settings.epochs)
    chosen = init.herding(in_memory(features.joint_rows()), context.count)
    return coreset(pairs, context, "herding", rows[chosen])


METHOD = Method("real pairs whose mean stays nearest to the mean of all", Settings, fit)
