from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pairstill.data.pair_dataset import ChosenImages, PairDataset, is_unicode
from pairstill.errors import PairstillError
from tests.data.conftest import Memory, dataset, picture

LINKS = np.array([[0, 5], [1, 1], [1, 3], [5, 0], [2, 1]])
SPLITS = {"train": np.array([2, 1]), "val": np.array([0]), "test": np.array([5, 3])}


def pairs_of(pairs: PairDataset) -> list[tuple[str, str]]:
    return [(pairs.images.name(picture), pairs.captions[caption]) for picture, caption in pairs.links.tolist()]


def test_a_split_is_renumbered_and_holds_the_same_pairs() -> None:
    part = dataset(links=LINKS, splits=SPLITS).split("train")
    assert part.images.tolist() == [1, 2] and part.captions.tolist() == [1, 3]
    assert [(part.images[row], part.captions[text]) for row, text in part.links] == [(1, 1), (1, 3), (2, 1)]
    with pytest.raises(PairstillError, match=r"toy has no split 'dev'\. It has: test, train, val\."):
        dataset().split("dev")


def test_what_is_selected_keeps_its_pairs_splits_and_digests() -> None:
    whole = dataset(links=LINKS, splits=SPLITS, digests=np.arange(6, dtype=np.uint8)[:, None].repeat(32, axis=1))
    some = whole.select(np.array([4, 2, 1, 2]), np.array([3, 1]))
    assert [some.images.name(row) for row in range(len(some.images))] == ["p1.png", "p2.png", "p4.png"]
    assert some.images.read(2) == whole.images.read(4)
    assert pairs_of(some) == [pair for pair in pairs_of(whole) if pair[0] in ("p1.png", "p2.png")]
    assert {name: rows.tolist() for name, rows in some.splits.items()} == {"train": [1, 0], "val": [], "test": []}
    assert some.digests[:, 0].tolist() == [1, 2, 4]


def test_the_fingerprint_is_of_every_part_and_that_of_annotations_of_all_but_the_pictures() -> None:
    base = dataset()
    changed = {
        "pictures": replace(base, images=Memory([*base.images.data[:5], picture(200)])),
        "captions": replace(base, captions=[*base.captions[:5], "another"]),
        "links": replace(base, links=np.concatenate([base.links, [[0, 1]]])),
        "splits": replace(base, splits={**base.splits, "train": np.arange(3)}),
    }
    assert len({base.fingerprint, *(other.fingerprint for other in changed.values())}) == 5
    assert changed["pictures"].annotations == base.annotations
    assert len({other.annotations for other in changed.values()}) == 4
    shuffled = replace(base, splits={**base.splits, "train": base.splits["train"][::-1]})
    assert shuffled.fingerprint == base.fingerprint


def test_a_choice_of_pictures_has_a_signature_of_its_own() -> None:
    store = dataset().images
    chosen = [ChosenImages(store, np.array(rows)).signature() for rows in ([0, 1], [1, 0], [0, 1])]
    assert chosen[0] == chosen[2] != chosen[1]
    assert store.signature() not in chosen


def test_half_a_character_is_no_text() -> None:
    assert is_unicode("été 犬 🙂") and not is_unicode("half \ud83d")
