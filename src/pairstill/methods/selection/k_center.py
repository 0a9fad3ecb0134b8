"""K-center: real pairs that cover the others (Sener and Savarese, 2018), as the paper runs it.

After the warm-up a pair's feature is the sum of its two unit vectors. The first pair is random; each next one is the
farthest from all taken so far.
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
    """Pairs of different images, farthest first."""
    rows, features = candidates_after_warm_up(pairs, context, context.settings.epochs)
    chosen = subset_selection.k_center(
        in_memory(features.image_rows()) + in_memory(features.text_rows()), context.count, context.seed
    )
    return coreset(pairs, context, rows[chosen])


METHOD = Method("k-center", "real pairs, each the farthest from those before it", Settings, fit)
