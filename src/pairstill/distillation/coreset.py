"""A coreset: real pairs that a method chose, as a set."""

from __future__ import annotations

from torch import Tensor

from pairstill.distilled import DistilledSet
from pairstill.encoded import EncodedSplit
from pairstill.methods.contract import Context, finished


def coreset(pairs: EncodedSplit, context: Context, method: str, rows: Tensor) -> DistilledSet:
    """The real pairs in `rows` of the training links, pictures and text embeddings as they are."""
    image_rows, text_rows = pairs.pairs.links[rows].unbind(1)
    images = context.encoded.pictures(pairs.images[image_rows])
    return finished(pairs, context, method, images, pairs.pairs.texts[text_rows].clone())
