"""What students read in place of a set's texts, where their text encoder is not the one that the set was made with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pairstill.errors import PairstillError
from pairstill.evaluation.retrieved_captions import with_retrieved_captions
from pairstill.evaluation.scoring import with_nearest_captions
from pairstill.evaluation.text_translation import with_translated_texts
from pairstill.features.encoded_dataset import EncodedDataset
from pairstill.sets.distilled_set import DistilledSet
from pairstill.towers.two_tower import Towers
from pairstill.training.training_recipe import Recipe

TextAdaptation = Literal["as-is", "nearest", "retrieved", "translated"]
"""The distilled embeddings; the captions nearest to them, encoded anew; those that students of the set find for its
images, encoded anew; or the embeddings through the linear map that best takes real captions from one text encoder to
the other.
"""


def with_readable_texts(
    texts: TextAdaptation,
    encoded: EncodedDataset,
    source: Callable[[], EncodedDataset],
    made: DistilledSet,
    recipe: Recipe,
    seed: int,
) -> DistilledSet:
    """The set with texts that the students' encoder goes with.

    `source` gives the dataset through the towers that the set was made with; it is asked where it is needed. Captions
    are found by students of `recipe` and `seed`.
    """
    if texts == "nearest":
        return with_nearest_captions(encoded, made)
    if texts == "retrieved":
        return with_retrieved_captions(encoded, source(), made, recipe, seed)
    return with_translated_texts(encoded, source(), made) if texts == "translated" else made


def towers_of(made: DistilledSet) -> Towers:
    """The towers that a set was made with."""
    recorded: dict[str, Any] = made.info.get("towers", {})
    if not recorded:
        raise PairstillError("the set does not say what it was made with. Students can read its nearest captions.")
    return Towers.from_dict({name: value for name, value in recorded.items() if name != "encoders"})
