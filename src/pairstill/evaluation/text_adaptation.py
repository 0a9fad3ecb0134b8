"""What students read in place of a set's texts, where their text encoder is not the one that the set was made with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pairstill.distilled import DistilledSet
from pairstill.encoded import Encoded
from pairstill.errors import PairstillError
from pairstill.evaluation import with_nearest_captions
from pairstill.retrieved import with_retrieved_captions
from pairstill.towers import Towers
from pairstill.training import Recipe
from pairstill.translation import with_translated_texts

Texts = Literal["as-is", "nearest", "retrieved", "translated"]
"""The distilled embeddings; the captions nearest to them, encoded anew; those that students of the set find for its
pictures, encoded anew; or the embeddings through the linear map that best takes real captions from one text encoder to
the other.
"""


def readable(
    texts: Texts, encoded: Encoded, source: Callable[[], Encoded], made: DistilledSet, recipe: Recipe, seed: int
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
