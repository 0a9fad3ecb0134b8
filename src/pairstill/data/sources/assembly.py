"""From rows (images with captions and perhaps a split) to a PairDataset."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pairstill.data.pair_dataset import Indices, PairDataset
from pairstill.data.sources.source_spec import SourceSpec
from pairstill.errors import PairstillError

# What people call the three splits. Karpathy's `restval` is the part of COCO's validation set that trains.
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training", "restval"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def split_name(value: object, where: str) -> str:
    """`train`, `val` or `test` for what a file says; `where` names the row in an error."""
    name = SPLIT_NAMES.get(str(value).strip().lower())
    if name is None:
        raise PairstillError(f"{where}: split is {value!r}. Write one of: {', '.join(SPLIT_NAMES)}.")
    return name


def link_captions(captions_of: Iterable[Sequence[str]], merge: bool) -> tuple[list[str], Indices]:
    """Number the captions of every image.

    Args:
        captions_of: For each image its captions.
        merge: Whether equal texts are one caption with several images. Empty texts are never merged, so
            that each can be reported.

    Returns:
        The captions, and the links as rows (image, caption), shape [P, 2].
    """
    captions: list[str] = []
    number: dict[str, int] = {}
    links = array("q")  # eight bytes a number, where a list of tuples would need a hundred
    for picture, texts in enumerate(captions_of):
        rows: dict[int, None] = {}
        for text in texts:
            row = number.get(text) if merge and text.strip() else None
            if row is None:
                row = number[text] = len(captions)
                captions.append(text)
            rows[row] = None
        for row in rows:
            links.extend((picture, row))
    return captions, np.array(links, dtype=np.int64).reshape(-1, 2)


def rows_of_splits(names: Iterable[str]) -> dict[str, Indices]:
    """Rows of each split from the split of each row."""
    found = np.array(list(names), dtype=str)
    return {name: np.flatnonzero(found == name).astype(np.int64) for name in ("train", "val", "test")}


def complete_splits(splits: Mapping[str, Indices], spec: SourceSpec) -> dict[str, Indices]:
    """Take the splits that are missing from the training images: same seed, same choice."""
    from pairstill.runtime.seeds import numpy_generator

    complete = {name: splits.get(name, np.empty(0, np.int64)) for name in ("train", "val", "test")}
    total = sum(map(len, complete.values()))
    for name, fraction in (("val", spec.val_fraction), ("test", spec.test_fraction)):
        if len(complete[name]) == 0 and len(complete["train"]) > 1:
            order = numpy_generator(spec.seed, "split", name).permutation(complete["train"])
            count = min(max(1, round(fraction * total)), len(order) - 1)
            complete[name], complete["train"] = np.sort(order[:count]), np.sort(order[count:])
    return complete


def take_first(dataset: PairDataset, limit: int | None) -> PairDataset:
    """At most `limit` images of each split, with their captions."""
    if limit is None or all(len(rows) <= limit for rows in dataset.splits.values()):
        return dataset
    images = np.concatenate([np.sort(rows)[:limit] for rows in dataset.splits.values()])
    captions = dataset.links[np.isin(dataset.links[:, 0], images), 1]
    return dataset.select(images, captions)
