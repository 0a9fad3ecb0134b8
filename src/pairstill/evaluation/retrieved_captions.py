"""Captions for another text encoder: those that students of a set find for its images.

A distilled text is no caption, and the caption nearest to it is near in ways that matter to no student. The captions
that trained students put first for a pair's image, of all that are real, say what the pair came to mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pairstill.evaluation.scoring import distilled_pairs, with_texts
from pairstill.features.encoded_dataset import EncodedDataset
from pairstill.features.training_pairs import TrainingPairs
from pairstill.runtime.row_matrix import RowMatrix, blocks
from pairstill.runtime.seeds import derive
from pairstill.sets.distilled_set import DistilledSet
from pairstill.towers.two_tower import TwoTower
from pairstill.training.student_training import embed, learnt_recipe
from pairstill.training.training_loop import train
from pairstill.training.training_recipe import Recipe

RETRIEVERS = 3
"""Students that look together: their cosines are added."""

CAPTIONS = 5
"""Captions for an image, as many as people wrote for one of Flickr: one says less, and ten no more (docs/log.md)."""


def with_retrieved_captions(
    encoded: EncodedDataset, source: EncodedDataset, distilled: DistilledSet, recipe: Recipe, seed: int
) -> DistilledSet:
    """The set with the mean of some real captions for each text, as the text encoder of `encoded` reads them.

    `source` is what the set was made with: its students find the captions.
    """
    pairs, recipe = distilled_pairs(source, distilled), learnt_recipe(recipe, distilled.info.get("student", {}))
    models = []
    for number in range(RETRIEVERS):
        student = derive(seed, "retriever", number)
        models.append(source.new_model(student))
        train(models[-1], pairs, recipe, student)
    rows = best_captions(models, pairs, source.split("train").pairs.texts, CAPTIONS)
    texts = encoded.split("train").pairs.texts[rows.flatten()].reshape(*rows.shape, -1)
    return with_texts(encoded, distilled, texts.mean(dim=1))


@torch.no_grad()
def best_captions(models: list[TwoTower], pairs: TrainingPairs, captions: RowMatrix, count: int) -> Tensor:
    """For each image of `pairs` the rows of the captions with the highest sums of the models' cosines, [N, count]."""
    images = [embed(model.eval(), pairs.inputs, pairs.texts)[0] for model in models]
    device = next(models[0].parameters()).device
    best, rows = torch.empty(len(images[0]), 0), torch.empty(len(images[0]), 0, dtype=torch.int64)
    for start, block in blocks(captions):
        words = [model.encode_text(block.to(device)).cpu() for model in models]
        cosines = torch.stack([v @ t.T for v, t in zip(images, words, strict=True)]).sum(0)
        best = torch.cat([best, cosines], dim=1)
        rows = torch.cat([rows, torch.arange(start, start + len(block)).expand(len(rows), -1)], dim=1)
        best, order = best.topk(min(count, best.shape[1]), dim=1)
        rows = rows.gather(1, order)
    return rows
