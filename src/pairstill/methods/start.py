"""First pairs as tensors: chosen real pairs, or noise."""

from __future__ import annotations

import torch
from torch import Tensor

from pairstill.encoded import EncodedSplit
from pairstill.init import choose_pairs
from pairstill.methods.contract import Context
from pairstill.seeds import generator


def start(pairs: EncodedSplit, context: Context, init: str) -> tuple[Tensor, Tensor]:
    """Images [N, 3, S, S] and texts [N, d_t] to begin with.

    `noise` draws standard normal pixels, and texts with the mean and spread of the real embeddings; every other
    way takes real pairs.
    """
    encoded = context.encoded
    rows = choose_pairs(
        "random" if init == "noise" else init, encoded.pair_features(pairs), context.count, context.seed
    )
    image_rows, text_rows = pairs.pairs.links[rows].unbind(1)
    texts = pairs.pairs.texts[text_rows].clone()
    if init != "noise":
        return encoded.pictures(pairs.images[image_rows]), texts
    random = generator(context.seed, "noise")
    size = encoded.towers.image_size
    images = torch.randn(context.count, 3, size, size, generator=random)
    real = pairs.pairs.texts
    return images, real.mean(dim=0) + real.std(dim=0) * torch.randn(texts.shape, generator=random)
