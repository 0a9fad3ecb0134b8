"""Captions for another text encoder: those that students of a set find for its pictures.

A distilled text is no caption, and the caption nearest to it is near in ways that matter to no student. The captions
that trained students put first for a pair's picture, of all that are real, say what the pair came to mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pairstill.distilled import DistilledSet
from pairstill.encoded import Encoded
from pairstill.evaluation import distilled_pairs, with_texts
from pairstill.rows import Rows, blocks
from pairstill.seeds import derive
from pairstill.students import embed, learnt_recipe
from pairstill.towers import TwoTower
from pairstill.training import Recipe, TrainingPairs, train

RETRIEVERS = 3
"""Students that look together: their cosines are added."""


def with_retrieved_captions(
    encoded: Encoded, source: Encoded, distilled: DistilledSet, recipe: Recipe, seed: int = 0
) -> DistilledSet:
    """The set with a real caption for each text, as the text encoder of `encoded` reads it; `source` made the set."""
    pairs = distilled_pairs(source, distilled)
    models = []
    for number in range(RETRIEVERS):
        student = derive(seed, "retriever", number)
        models.append(source.new_model(student))
        train(models[-1], pairs, learnt_recipe(recipe, distilled.info.get("student", {})), student)
    rows = best_captions(models, pairs, source.split("train").pairs.texts)
    return with_texts(encoded, distilled, encoded.split("train").pairs.texts[rows])


@torch.no_grad()
def best_captions(models: list[TwoTower], pairs: TrainingPairs, captions: Rows) -> Tensor:
    """For each picture of `pairs` the row of the caption with the highest sum of the models' cosines, [N]."""
    images = [embed(model.eval(), pairs.inputs, pairs.texts)[0] for model in models]
    best, rows = torch.full((len(images[0]),), -torch.inf), torch.zeros(len(images[0]), dtype=torch.int64)
    for start, block in blocks(captions):
        device = next(models[0].parameters()).device
        words = [model.encode_text(block.to(device)).cpu() for model in models]
        found = torch.stack([v @ t.T for v, t in zip(images, words, strict=True)]).sum(0).max(dim=1)
        rows = torch.where(found.values > best, start + found.indices, rows)
        best = torch.maximum(best, found.values)
    return rows
