"""Students: fresh models trained on a distilled set, and their recall on real pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pairstill.features.encoded_dataset import EncodedDataset, EncodedSplit
from pairstill.features.training_pairs import Inputs, TensorInputs, TrainingPairs
from pairstill.runtime.row_matrix import RowMatrix, blocks
from pairstill.towers.two_tower import TwoTower
from pairstill.training.recall import Recall, recall
from pairstill.training.training_loop import train
from pairstill.training.training_recipe import STUDENT_RECIPE, Recipe

ENCODE_AT_ONCE = 256


@dataclass(frozen=True)
class Candidate:
    """What students train on: synthetic pairs, and what a method learnt for their training besides.

    Attributes:
        images: Normalised pixels [N, 3, S, S].
        texts: Text embeddings [N, d_t].
        similarity: Soft targets [N, N], where students train with them.
        recipe: What of a student's recipe the method learnt: `lr` and `text_lr`.
    """

    images: Tensor
    texts: Tensor
    similarity: Tensor | None = None
    recipe: Mapping[str, float] = field(default_factory=dict)


def learnt_recipe(recipe: Recipe, learnt: Mapping[str, float]) -> Recipe:
    """A student's recipe with the step sizes that a method learnt in place of its own."""
    return replace(recipe, lr=learnt.get("lr", recipe.lr), text_lr=learnt.get("text_lr", recipe.text_lr))


@dataclass(frozen=True)
class Trial:
    """One student: its seed, and the recall after each epoch that was asked for."""

    seed: int
    recalls: dict[int, Recall]

    @property
    def last(self) -> Recall:
        """After the last epoch."""
        return self.recalls[max(self.recalls)]

    @property
    def best(self) -> Recall:
        """Of the best epoch, by mean recall."""
        return max(self.recalls.values(), key=lambda recall: recall.mean)


def as_training_pairs(
    encoded: EncodedDataset, candidate: Candidate, augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
) -> TrainingPairs:
    """Synthetic pairs as a student of these towers trains on them."""
    rows = torch.arange(len(candidate.images))
    inputs = encoded.to_inputs(candidate.images)
    usable = augment if encoded.towers.train == "full" else None
    links = torch.stack([rows, rows], dim=1)
    return TrainingPairs(TensorInputs(inputs, usable), candidate.texts.detach(), links, candidate.similarity)


def train_student(
    encoded: EncodedDataset,
    pairs: TrainingPairs,
    test: EncodedSplit,
    seed: int,
    recipe: Recipe = STUDENT_RECIPE,
    evaluations: int = 1,
) -> Trial:
    """Train a fresh student and take its recall on `test` after the last epoch, and at even steps before it.

    With `evaluations` = 11 the first is taken before training, as published code does.
    """
    model = encoded.new_model(seed)
    wanted = {round(recipe.epochs * i / (evaluations - 1)) for i in range(evaluations)} if evaluations > 1 else set()
    wanted.add(recipe.epochs)
    recalls = {0: model_recall(model, test)} if 0 in wanted else {}

    def on_epoch(epoch: int) -> None:
        if epoch in wanted:
            recalls[epoch] = model_recall(model, test)

    train(model, pairs, recipe, seed, on_epoch)
    return Trial(seed, recalls)


def model_recall(model: TwoTower, split: EncodedSplit) -> Recall:
    """Recall of a model on one split. The model is left as it was."""
    images, texts = embed(model, split.pairs.inputs, split.pairs.texts)
    return recall(images, texts, split.pairs.links)


@torch.no_grad()
def embed(model: TwoTower, inputs: Inputs, texts: RowMatrix) -> tuple[Tensor, Tensor]:
    """Unit vectors of all images [I, d] and all texts [C, d], on the CPU."""
    training = model.training
    device = next(model.parameters()).device
    model.eval()
    rows = torch.arange(len(inputs)).split(ENCODE_AT_ONCE)
    images = torch.cat([model.encode_image(inputs.take(part).to(device)).cpu() for part in rows])
    words = torch.cat([model.encode_text(part.to(device)).cpu() for _, part in blocks(texts, 4096)])
    model.train(training)
    return images, words
