"""Herding: real pairs whose mean stays nearest to the mean of all (Welling, 2009), as the paper runs it.

After the warm-up a pair's feature is its two unit vectors side by side. Pairs are taken one by one; each keeps the mean
of those taken so far as near as it can be to the mean of all.
"""

from __future__ import annotations

from pairstill.distillation.contract import Context, Method
from pairstill.distillation.coreset import coreset
from pairstill.distillation.warm_up import Settings, candidates_after_warm_up
from pairstill.features import subset_selection
from pairstill.features.encoded_dataset import EncodedSplit
from pairstill.runtime.row_matrix import in_memory
from pairstill.sets.distilled_set import DistilledSet


def fit(pairs: EncodedSplit, context: Context) -> DistilledSet:
    """Pairs of different images, in the order in which herding takes them."""
    rows, features = candidates_after_warm_up(pairs, context, context.settings.epochs)
    chosen = subset_selection.herding(in_memory(features.joint_rows()), context.count)
    return coreset(pairs, context, rows[chosen])


METHOD = Method("herding", "real pairs whose mean stays nearest to the mean of all", Settings, fit)
