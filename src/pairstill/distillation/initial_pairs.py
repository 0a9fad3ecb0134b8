"""Initial pairs as tensors: chosen real pairs, or noise."""

from __future__ import annotations

import torch
from torch import Tensor

from pairstill.distillation.contract import Context
from pairstill.features.encoded_dataset import EncodedSplit
from pairstill.features.subset_selection import PairFeatures, cells_of, choose_pairs, mean_texts_of
from pairstill.runtime.row_matrix import SAMPLED_ROWS, sample
from pairstill.runtime.seeds import derive, generator
from pairstill.sets.distilled_set import nearest_captions
from pairstill.sets.initial_record import InitialPairs, read_initial_pairs, write_initial_pairs
from pairstill.training.student_training import embed


def projected_features(pairs: EncodedSplit, context: Context) -> PairFeatures:
    """Features after the anchor's projectors, fresh as they are: the paper's letter (Eq. 4)."""
    model = context.encoded.new_model(derive(context.seed, "anchor"))
    return PairFeatures(*embed(model, pairs.pairs.inputs, pairs.pairs.texts), pairs.pairs.links)


def initial_pairs(pairs: EncodedSplit, context: Context, init: str, mean_texts: bool = False) -> tuple[Tensor, Tensor]:
    """Images [N, 3, S, S] and texts [N, d_t] to begin with; the run folder keeps a copy to show.

    `noise` draws standard normal pixels, and texts with the mean and spread of the real embeddings; every other
    way takes real pairs. With `mean_texts` the text of such a pair is the mean over all pairs that are nearest to it.
    """
    if init == "noise":
        images, texts = _noise(pairs, context)
        _keep(pairs, context, images, texts, None)
        return images, texts
    projected = init == "kmeans-projected"
    features = projected_features(pairs, context) if projected else context.encoded.pair_features(pairs)
    rows = choose_pairs("kmeans" if projected else init, features, context.count, context.seed)
    image_rows, text_rows = pairs.pairs.links[rows].unbind(1)
    images, texts = context.encoded.pictures(pairs.images[image_rows]), pairs.pairs.texts[text_rows].clone()
    pretrained = context.encoded.pair_features(pairs)
    cells = cells_of(pretrained, rows)
    if mean_texts:
        texts = mean_texts_of(pretrained, cells)
    _keep(pairs, context, images, texts, cells)
    return images, texts


def _noise(pairs: EncodedSplit, context: Context) -> tuple[Tensor, Tensor]:
    random = generator(context.seed, "noise")
    size = context.encoded.towers.image_size
    real = sample(pairs.pairs.texts, SAMPLED_ROWS, context.seed)
    images = torch.randn(context.count, 3, size, size, generator=random)
    noise = torch.randn(context.count, real.shape[1], generator=random)
    return images, real.mean(dim=0) + real.std(dim=0) * noise


def _keep(pairs: EncodedSplit, context: Context, images: Tensor, texts: Tensor, cells: Tensor | None) -> None:
    """Write the initial pairs into the run folder; of real ones, `cells` has the nearest to each training pair."""
    folder = context.run.folder
    if read_initial_pairs(folder) is not None:
        return
    pictures = (context.encoded.image_encoder.denormalise(images).clamp(0, 1) * 255).round().to(torch.uint8)
    sizes = None if cells is None else torch.bincount(cells).tolist()
    captions = nearest_captions(texts, pairs.pairs.texts, pairs.captions)
    write_initial_pairs(folder, InitialPairs(pictures.contiguous(), texts, captions, sizes))
