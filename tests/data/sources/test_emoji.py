from __future__ import annotations

import pickle

import numpy as np

from pairstill.data.decoding import decode
from pairstill.data.sources import SourceSpec, open_source


def test_the_embedded_set() -> None:
    dataset = open_source(SourceSpec("emoji"))
    styles = {
        name: {dataset.images.name(int(row)).split("/")[0] for row in rows} for name, rows in dataset.splits.items()
    }
    assert styles["val"] == styles["test"] == {"noto"}
    assert styles["train"] == {"fluent-3d", "fluent-color", "fluent-flat", "fxemoji", "twemoji", "emojione2"}
    assert len(dataset.splits["test"]) == 1000 and len(dataset.splits["train"]) == 8438
    assert 600 < len(dataset.splits["val"]) <= 653
    assert sum(map(len, dataset.splits.values())) == len(dataset.images)
    assert all(name in dataset.license for name in ("MIT", "Apache-2.0", "CC-BY-4.0"))


def test_texts_belong_to_the_concept() -> None:
    dataset = open_source(SourceSpec("emoji"))
    assert len(np.unique(dataset.links, axis=0)) == len(dataset.links)
    concept = [dataset.images.name(row).split("/")[1] for row in range(len(dataset.images))]
    of_caption: dict[int, set[str]] = {}
    for picture, caption in dataset.links.tolist():
        of_caption.setdefault(caption, set()).add(concept[picture])
    assert all(len(concepts) == 1 for concepts in of_caption.values())
    joker = [row for row, text in enumerate(dataset.captions) if text == "joker"]
    pictures = dataset.links[np.isin(dataset.links[:, 1], joker), 0]
    assert len(pictures) == concept.count("1F0CF") > 1


def test_same_choice_every_time_and_small_to_send() -> None:
    first, second = open_source(SourceSpec("emoji", seed=1)), open_source(SourceSpec("emoji", seed=2))
    assert np.array_equal(first.splits["test"], second.splits["test"])
    store = pickle.loads(pickle.dumps(first.images))
    assert decode(store.read(0), "x").size == (64, 64) and store.signature() == first.images.signature()


def test_limit() -> None:
    dataset = open_source(SourceSpec("emoji", limit=20))
    assert {len(rows) for rows in dataset.splits.values()} == {20} and len(dataset.images) == 60
