"""First pairs as tensors: chosen real pairs, or noise."""

from __future__ import annotations

import torch
from torch import Tensor

from pairstill.encoded import EncodedSplit
from pairstill.init import PairFeatures, choose_pairs
from pairstill.methods.contract import Context
from pairstill.seeds import derive, generator
from pairstill.students import embed


def projected_features(pairs: EncodedSplit, context: Context) -> PairFeatures:
    """Features after the anchor's projectors, fresh as they are: the paper's letter (Eq. 4)."""
    model = context.encoded.new_model(derive(context.seed, "anchor"))
    return PairFeatures(*embed(model, pairs.pairs.inputs, pairs.pairs.texts), pairs.pairs.links)


def start(pairs: EncodedSplit, context: Context, init: str) -> tuple[Tensor, Tensor]:
    """Images [N, 3, S, S] and texts [N, d_t] to begin with.

    `noise` draws standard normal pixels, and texts with the mean and spread of the real embeddings; every other
    way takes real pairs.
    """
    encoded = context.encoded
    if init == "kmeans-projected":
        rows = choose_pairs("kmeans", projected_features(pairs, context), context.count, context.seed)
    else:
        known = "random" if init == "noise" else init
        rows = choose_pairs(known, encoded.pair_features(pairs), context.count, context.seed)
    image_rows, text_rows = pairs.pairs.links[rows].unbind(1)
    texts = pairs.pairs.texts[text_rows].clone()
    if init != "noise":
        return encoded.pictures(pairs.images[image_rows]), texts
    random = generator(context.seed, "noise")
    size = encoded.towers.image_size
    images = torch.randn(context.count, 3, size, size, generator=random)
    real = pairs.pairs.texts
    return images, real.mean(dim=0) + real.std(dim=0) * torch.randn(texts.shape, generator=random)
