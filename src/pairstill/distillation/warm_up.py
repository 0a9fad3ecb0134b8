"""The warm-up of the coresets: a model trained on the real pairs for a few epochs, and pairs as it sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from pairstill.distillation.contract import Context
from pairstill.distillation.setting_checks import check_settings
from pairstill.features.encoded_dataset import EncodedSplit
from pairstill.features.subset_selection import PairFeatures, random_pairs
from pairstill.runtime.progress import progress
from pairstill.runtime.seeds import derive
from pairstill.towers.two_tower import TwoTower
from pairstill.training.student_training import embed
from pairstill.training.training_loop import train
from pairstill.training.training_recipe import expert_recipe


@dataclass(frozen=True)
class Settings:
    """Settings of a coreset that chooses by the features of a warmed-up model.

    Args:
        epochs: Epochs of training before the features are taken.
    """

    epochs: int = 5

    def __post_init__(self) -> None:
        check_settings(self, {"epochs": 1})


def warm_up(
    pairs: EncodedSplit, context: Context, epochs: int, after_epoch: Callable[[TwoTower], str] | None = None
) -> TwoTower:
    """A model trained on `pairs` as experts are, but for `epochs`; the same one for every method with that seed.

    `after_epoch` gets the model after each epoch and returns a note for the progress bar.
    """
    model = context.encoded.new_model(derive(context.seed, "warm-up", "model"))
    recipe = replace(expert_recipe(context.encoded.towers), epochs=epochs)
    with progress("warm-up", epochs) as advance:

        def on_epoch(epoch: int) -> None:
            advance(1, note=after_epoch(model) if after_epoch else "")

        train(model, pairs.pairs, recipe, derive(context.seed, "warm-up", "training"), on_epoch)
    return model


def candidates_after_warm_up(pairs: EncodedSplit, context: Context, epochs: int) -> tuple[Tensor, PairFeatures]:
    """One pair of each image, as rows of the training links, and its features after the warm-up.

    A coreset shows each image once, so each image is a candidate once, with one of its captions drawn at random:
    what a method promises then holds for all candidates, and no choice has to be taken back. The caption is drawn as
    the random pairs draw theirs, so that the methods differ in nothing but how they choose. Above all it is drawn
    without bias: the candidates' mean, which herding aims at, is that of all pairs up to chance. The caption nearest
    to an image, or to the mean of the image's captions, would move that mean, and always the same way.
    """
    split = pairs.pairs
    images, texts = embed(warm_up(pairs, context, epochs), split.inputs, split.texts)
    rows = random_pairs(PairFeatures(images, texts, split.links), len(images), context.seed)
    return rows, PairFeatures(images, texts, split.links[rows])
