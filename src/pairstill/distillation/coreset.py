"""A coreset: real pairs that a method chose, as a set."""

from __future__ import annotations

from torch import Tensor

from pairstill.distillation.contract import Context, finished
from pairstill.features.encoded_dataset import EncodedSplit
from pairstill.sets.distilled_set import DistilledSet


def coreset(pairs: EncodedSplit, context: Context, rows: Tensor) -> DistilledSet:
    """The real pairs in `rows` of the training links, images and text embeddings as they are."""
    image_rows, text_rows = pairs.pairs.links[rows].unbind(1)
    images = context.encoded.pictures(pairs.images[image_rows])
    return finished(pairs, context, images, pairs.pairs.texts[text_rows].clone())
