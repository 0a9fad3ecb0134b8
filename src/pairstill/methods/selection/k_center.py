"""K-center: real pairs that cover the others (Sener and Savarese, 2018), as the paper runs it.

After the warm-up a pair's feature is the sum of its two unit vectors. The first pair is random; each next one is the
farthest from all taken so far.
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
    """Pairs of different pictures, farthest first."""
    rows, features = warm_candidates(pairs, context, context.settings.epochs)
    chosen = init.k_center(
        in_memory(features.image_rows()) + in_memory(features.text_rows()), context.count, context.seed
    )
    return coreset(pairs, context, "k-center", rows[chosen])


METHOD = Method("real pairs, each the farthest from those before it", Settings, fit)
