"""First pairs as tensors: chosen real pairs, or noise."""

from __future__ import annotations

import torch
from torch import Tensor

from pairstill.encoded import EncodedSplit
from pairstill.init import PairFeatures, cells_of, choose_pairs, mean_texts
from pairstill.methods.contract import Context
from pairstill.methods.first_pairs import keep_first_pairs
from pairstill.rows import SAMPLED_ROWS, sample
from pairstill.seeds import derive, generator
from pairstill.students import embed


def projected_features(pairs: EncodedSplit, context: Context) -> PairFeatures:
    """Features after the anchor's projectors, fresh as they are: the paper's letter (Eq. 4)."""
    model = context.encoded.new_model(derive(context.seed, "anchor"))
    return PairFeatures(*embed(model, pairs.pairs.inputs, pairs.pairs.texts), pairs.pairs.links)


def start(pairs: EncodedSplit, context: Context, init: str, average: bool = False) -> tuple[Tensor, Tensor]:
    """Images [N, 3, S, S] and texts [N, d_t] to begin with; the run folder keeps a copy to show.

    `noise` draws standard normal pixels, and texts with the mean and spread of the real embeddings; every other
    way takes real pairs. With `average` the text of such a pair is the mean over all pairs that are nearest to it.
    """
    if init == "noise":
        images, texts = _noise(pairs, context)
        keep_first_pairs(pairs, context, images, texts, None)
        return images, texts
    projected = init == "kmeans-projected"
    features = projected_features(pairs, context) if projected else context.encoded.pair_features(pairs)
    rows = choose_pairs("kmeans" if projected else init, features, context.count, context.seed)
    image_rows, text_rows = pairs.pairs.links[rows].unbind(1)
    images, texts = context.encoded.pictures(pairs.images[image_rows]), pairs.pairs.texts[text_rows].clone()
    pretrained = context.encoded.pair_features(pairs)
    cells = cells_of(pretrained, rows)
    if average:
        texts = mean_texts(pretrained, cells)
    keep_first_pairs(pairs, context, images, texts, cells)
    return images, texts


def _noise(pairs: EncodedSplit, context: Context) -> tuple[Tensor, Tensor]:
    random = generator(context.seed, "noise")
    size = context.encoded.towers.image_size
    real = sample(pairs.pairs.texts, SAMPLED_ROWS, context.seed)
    images = torch.randn(context.count, 3, size, size, generator=random)
    noise = torch.randn(context.count, real.shape[1], generator=random)
    return images, real.mean(dim=0) + real.std(dim=0) * noise
