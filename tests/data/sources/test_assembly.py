from __future__ import annotations

import numpy as np
import pytest

from pairstill.data.pair_dataset import Indices
from pairstill.data.sources import SourceSpec
from pairstill.data.sources.assembly import complete_splits, link_captions, rows_of_splits, split_name, take_first
from pairstill.errors import PairstillError
from tests.data.conftest import dataset

TEXTS = [["red", "round", "red"], ["red", ""], ["", "green"]]


def test_equal_texts_are_one_caption_where_they_are_merged_but_for_empty_ones() -> None:
    captions, links = link_captions(TEXTS, merge=True)
    assert captions == ["red", "round", "", "", "green"]
    assert links.tolist() == [[0, 0], [0, 1], [1, 0], [1, 2], [2, 3], [2, 4]]
    captions, links = link_captions(TEXTS, merge=False)
    assert captions == [text for texts in TEXTS for text in texts]
    assert links.tolist() == [[0, 0], [0, 1], [0, 2], [1, 3], [1, 4], [2, 5], [2, 6]]
    assert link_captions([], merge=True)[1].shape == (0, 2)


def test_splits_are_known_by_what_people_call_them() -> None:
    assert [split_name(name, "row 0") for name in (" Validation ", "restval", "testing")] == ["val", "train", "test"]
    with pytest.raises(PairstillError, match=r"row 7: split is 'tset'\. Write one of: train"):
        split_name("tset", "row 7")
    rows = rows_of_splits(["train", "test", "train"])
    assert {name: found.tolist() for name, found in rows.items()} == {"train": [0, 2], "val": [], "test": [1]}


def completed(train: int, seed: int = 0, **others: Indices) -> dict[str, list[int]]:
    made = complete_splits({"train": np.arange(train), **others}, SourceSpec("x", seed=seed))
    return {name: rows.tolist() for name, rows in made.items()}


def test_a_split_that_is_missing_is_taken_from_training_and_one_that_is_there_stays() -> None:
    made = completed(20, test=np.array([50]))
    assert made["test"] == [50] and len(made["val"]) == 2
    assert sorted(made["train"] + made["val"]) == list(range(20))
    assert completed(20, test=np.array([50])) == made != completed(20, seed=1, test=np.array([50]))


@pytest.mark.parametrize(("pictures", "sizes"), [(0, [0, 0, 0]), (1, [1, 0, 0]), (2, [1, 1, 0]), (3, [1, 1, 1])])
def test_something_is_always_left_to_train_on(pictures: int, sizes: list[int]) -> None:
    assert [len(rows) for rows in completed(pictures).values()] == sizes
    greedy = complete_splits({"train": np.arange(pictures)}, SourceSpec("x", val_fraction=0.9, test_fraction=0.05))
    assert len(greedy["train"]) == min(pictures, 1)


def test_a_limit_keeps_the_first_of_each_split_with_their_captions() -> None:
    pairs = dataset()
    few = take_first(pairs, 2)
    assert [few.images.name(row) for row in range(len(few.images))] == ["p0.png", "p1.png", "p4.png", "p5.png"]
    assert list(few.captions) == ["caption 0", "caption 1", "caption 4", "caption 5"]
    assert take_first(pairs, None) is pairs and take_first(pairs, 4) is pairs
