"""The embedded set: emoji of eight art styles with the names and keywords of what they show."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache as memoize
from pathlib import Path
from typing import Any

import numpy as np

from pairstill.data.pair_dataset import Indices, PairDataset
from pairstill.data.sources.assembly import take_first
from pairstill.data.sources.source_spec import SourceSpec

FILE = Path(__file__).parent / "emoji64.parquet"
TRAIN_STYLES = ("fluent-3d", "fluent-color", "fluent-flat", "fxemoji", "twemoji", "emojione2")
# Noto is drawn apart from all others, so it is the test; Noto-blob resembles it and is left out.
TEST_STYLE = "noto"
TEST_PICTURES = 1000
SPLIT_SEED = 0
LICENSE = (
    "MIT (Fluent 3D, colour, flat); Apache-2.0 (Noto, FxEmoji); CC-BY-4.0 (Twemoji, EmojiOne2); "
    "resized to 64 px; texts from Unicode CLDR and emojilib"
)


@dataclass(frozen=True)
class EmojiImages:
    """An image store over rows of the embedded file, which each process reads once (11 MB)."""

    rows: Indices
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        """Style and code points, for example `noto/1F004`."""
        return self.labels[index]

    def read(self, index: int) -> bytes:
        """The WebP bytes."""
        return bytes(_pictures()[int(self.rows[index])].as_py())

    def signature(self) -> str:
        """Digest of the file's size and the rows."""
        text = f"{FILE.stat().st_size}{np.ascontiguousarray(self.rows, '<i8').tobytes().hex()}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@memoize
def _pictures() -> Any:
    import pyarrow.parquet as pq

    return pq.read_table(FILE, columns=["image"])["image"].combine_chunks()


def open_emoji(place: str, spec: SourceSpec, cache: Path | None) -> PairDataset:
    """Open the embedded set.

    The texts belong to a concept and are shared by all its styles: links join every image with every text
    of its concept. Train: six styles. Test: 1,000 Noto images. Validation: the other Noto
    images, about 650.
    """
    import pyarrow.parquet as pq

    table = pq.read_table(FILE, columns=["concept", "style", "captions"]).to_pylist()
    alike = _drawn_before([number for number, row in enumerate(table) if row["style"] == TEST_STYLE])
    styles = (*TRAIN_STYLES, TEST_STYLE)
    rows = [number for number, row in enumerate(table) if row["style"] in styles and number not in alike]
    chosen = [table[number] for number in rows]
    captions: dict[tuple[str, str], int] = {}
    links = [
        (picture, captions.setdefault((row["concept"], text), len(captions)))
        for picture, row in enumerate(chosen)
        for text in dict.fromkeys(row["captions"])
    ]
    images = EmojiImages(np.array(rows, np.int64), tuple(f"{row['style']}/{row['concept']}" for row in chosen))
    texts = [text for _, text in captions]
    splits = _splits([row["style"] for row in chosen])
    dataset = PairDataset("emoji", images, texts, np.array(links, np.int64), splits, LICENSE)
    return take_first(dataset, spec.limit)


def _drawn_before(rows: list[int]) -> set[int]:
    """Rows whose drawing occurs earlier: Noto draws a few concepts alike, and none may be in val and test."""
    first: dict[bytes, int] = {}
    return {row for row in rows if first.setdefault(bytes(_pictures()[row].as_py()), row) != row}


def _splits(styles: list[str]) -> dict[str, Indices]:
    """Train by style; the test images are chosen by a fixed seed, so that scores can be compared."""
    from pairstill.runtime.seeds import numpy_generator

    is_test_style = np.array(styles) == TEST_STYLE
    shuffled = numpy_generator(SPLIT_SEED, "emoji", "test").permutation(np.flatnonzero(is_test_style))
    return {
        "train": np.flatnonzero(~is_test_style).astype(np.int64),
        "val": np.sort(shuffled[TEST_PICTURES:]).astype(np.int64),
        "test": np.sort(shuffled[:TEST_PICTURES]).astype(np.int64),
    }
