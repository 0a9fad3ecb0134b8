"""A dataset seen through frozen encoders: cached matrices, memory-mapped, keyed by content."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairstill.data.augmentation import crop_and_flip, mirrored, warp
from pairstill.data.decoding import load_pixels
from pairstill.data.pair_dataset import PairDataset
from pairstill.errors import PairstillError
from pairstill.runtime.files import (
    digest_of,
    digest_of_items,
    locked,
    publish,
    read_manifest,
    remove,
    sha256,
    write_manifest,
)
from pairstill.runtime.progress import progress
from pairstill.runtime.seeds import generator
from pairstill.towers.folding import fold
from pairstill.towers.image_encoder import ImageEncoder
from pairstill.towers.text_encoder import TextEncoder

IMAGES_AT_ONCE = 64
CAPTIONS_AT_ONCE = 2048
ROWS_AT_ONCE = 4096

Matrix = NDArray[np.generic]


@dataclass(frozen=True)
class Pixels:
    """Real images as inputs of a tower in `full`: bytes on disk, normalised (and augmented) when taken."""

    matrix: Matrix
    normalise: Callable[[Tensor], Tensor]
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None

    def __len__(self) -> int:
        return len(self.matrix)

    def take(self, rows: Tensor, random: torch.Generator | None = None) -> Tensor:
        """Rows as normalised floats [n, 3, S, S]; with a generator, augmented."""
        chosen = torch.from_numpy(np.ascontiguousarray(self.matrix[rows.numpy()])).float() / 255
        if self.augment and random:
            chosen = self.augment(chosen, random)
        return self.normalise(chosen).contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True)
class Extraction:
    """A matrix that is computed once and kept.

    Attributes:
        path: Where it is kept; its name has a digest of all that it depends on.
        shape: Of all of it.
        dtype: Of its numbers.
        compute: `compute(begin, end)` yields these rows, block by block.
        label: What it is, for a person.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: str
    compute: Callable[[int, int], Iterator[Matrix]]
    label: str

    def matrix(self) -> Matrix:
        """The matrix, memory-mapped; computed if it is not there yet."""
        return cached_matrix(
            self.path, self.shape, self.dtype, lambda start: self.compute(start, self.shape[0]), self.label
        )

    def is_there(self) -> bool:
        """Whether it was computed before, and is still what was written."""
        return _is_whole(self.path)

    def part(self, begin: int, end: int) -> Extraction:
        """Some rows, in a file of their own."""

        def compute(first: int, last: int) -> Iterator[Matrix]:
            yield from self.compute(begin + first, begin + last)

        path = self.path.with_name(f"{self.path.stem}-rows-{begin}-{end}.npy")
        return Extraction(path, (end - begin, *self.shape[1:]), self.dtype, compute, f"{self.label}, rows {begin} on")

    def forget(self) -> None:
        """Remove its file, and what belongs to it."""
        for suffix in (".npy", ".json", ".lock"):
            self.path.with_suffix(suffix).unlink(missing_ok=True)


def image_features(
    folder: Path,
    dataset: PairDataset,
    encoder: ImageEncoder,
    size: int,
    workers: int = 0,
    device: str = "cpu",
) -> Extraction:
    """Features of every image [I, d], computed once for this content, encoder and size."""
    key = digest_of(["image features", dataset.fingerprint, encoder.fingerprint, size])

    def compute(begin: int, end: int) -> Iterator[NDArray[np.float32]]:
        network, rows = fold(encoder, size).to(device), np.arange(begin, end)
        with torch.inference_mode():
            for batch in load_pixels(dataset.images, rows, size, workers=workers, batch=IMAGES_AT_ONCE):
                pixels = encoder.normalise(torch.from_numpy(batch)).to(device, memory_format=torch.channels_last)
                yield network(pixels).float().cpu().numpy()

    shape = (len(dataset.images), encoder.width)
    return Extraction(folder / f"images-{key}.npy", shape, "float32", compute, f"image features, {size} px")


def view_features(
    folder: Path,
    dataset: PairDataset,
    encoder: ImageEncoder,
    size: int,
    rows: NDArray[np.int64],
    views: int,
    workers: int = 0,
    device: str = "cpu",
) -> Extraction:
    """Features of `views` views of some images [n, views, d]: each mirrored, then random crops of it."""
    key = digest_of(["views", dataset.fingerprint, encoder.fingerprint, size, views, digest_of_items(map(int, rows))])
    maps = [mirrored(len(rows)), *(crop_and_flip(len(rows), generator(0, "view", n)) for n in range(1, views))]

    def compute(begin: int, end: int) -> Iterator[NDArray[np.float32]]:
        network, done = fold(encoder, size).to(device), begin
        with torch.inference_mode():
            for batch in load_pixels(dataset.images, rows[begin:end], size, workers=workers, batch=IMAGES_AT_ONCE):
                pixels = encoder.normalise(torch.from_numpy(batch)).to(device)
                part = slice(done, done := done + len(batch))
                seen = (warp(pixels, view[part]).contiguous(memory_format=torch.channels_last) for view in maps)
                yield torch.stack([network(view).float().cpu() for view in seen], dim=1).numpy()

    shape, label = (len(rows), views, encoder.width), f"views of the images, {size} px"
    return Extraction(folder / f"views-{key}.npy", shape, "float32", compute, label)


def text_features(folder: Path, dataset: PairDataset, encoder: TextEncoder) -> Extraction:
    """Embeddings of every caption [C, d], computed once for this content and encoder."""
    key = digest_of(["text features", digest_of_items(dataset.captions), encoder.fingerprint])

    def compute(begin: int, end: int) -> Iterator[NDArray[np.float32]]:
        for first in range(begin, end, CAPTIONS_AT_ONCE):
            yield encoder.encode(dataset.captions[first : min(first + CAPTIONS_AT_ONCE, end)]).numpy()

    shape = (len(dataset.captions), encoder.width)
    return Extraction(folder / f"texts-{key}.npy", shape, "float32", compute, "text features")


def pixel_bytes(folder: Path, dataset: PairDataset, size: int, workers: int = 0) -> Extraction:
    """Every image decoded, resized and cropped, as bytes [I, 3, S, S]: what towers in `full` train on."""
    key = digest_of(["pixels", dataset.fingerprint, size])

    def compute(begin: int, end: int) -> Iterator[NDArray[np.uint8]]:
        rows = np.arange(begin, end)
        yield from load_pixels(dataset.images, rows, size, workers=workers, batch=IMAGES_AT_ONCE)

    shape = (len(dataset.images), 3, size, size)
    return Extraction(folder / f"pixels-{key}.npy", shape, "uint8", compute, f"images, {size} px")


def cached_matrix(
    path: Path,
    shape: tuple[int, ...],
    dtype: str,
    compute: Callable[[int], Iterator[Matrix]],
    label: str,
) -> Matrix:
    """The matrix at `path`, computed if it is not there yet.

    `compute(start)` yields blocks of rows from row `start` on. Blocks are written as they come, with a note of how
    far it got, so that a killed run goes on where it was; the file has its final name only when it is whole.
    """
    if not _is_whole(path):
        with locked(path.with_suffix(".lock")):
            if not _is_whole(path):  # another process may have made it while this one waited
                _make(path, shape, dtype, compute, label)
    return np.load(path, mmap_mode="r")  # type: ignore[no-any-return]


def _is_whole(path: Path) -> bool:
    """Whether a matrix is there and is the one that was written."""
    record = path.with_suffix(".json")
    if not (path.exists() and record.exists()):
        return False
    with contextlib.suppress(PairstillError):
        return sha256(path) == read_manifest(record).get("sha256")
    return False  # damaged: it is only a cache


def _make(
    path: Path, shape: tuple[int, ...], dtype: str, compute: Callable[[int], Iterator[Matrix]], label: str
) -> None:
    path.unlink(missing_ok=True)  # damaged: it is only a cache
    record = path.with_suffix(".json")
    partial, note = path.with_suffix(".partial.npy"), path.with_suffix(".partial.json")
    try:
        _fill(partial, note, shape, dtype, compute, label)
        publish(partial, path)
        write_manifest(record, {"sha256": sha256(path), "shape": shape, "what": label})
        remove(note)
    except OSError as error:
        raise PairstillError(
            f"could not write {path}: {error.strerror or error}. Free some space and run again."
        ) from error


def reserve(path: Path) -> None:
    """Claim a sparse file's whole size on disk now: writing to mapped memory on a full disk would kill the process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("rb+") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _fill(
    partial: Path,
    note: Path,
    shape: tuple[int, ...],
    dtype: str,
    compute: Callable[[int], Iterator[Matrix]],
    label: str,
) -> None:
    done, checksum = _so_far(partial, note, shape, dtype)
    mode = "r+" if done else "w+"
    matrix = np.lib.format.open_memmap(partial, mode=mode, dtype=dtype, shape=shape)
    reserve(partial)
    with progress(label, shape[0], done) as advance:
        for block in compute(done):
            matrix[done : done + len(block)] = block
            done, checksum = done + len(block), zlib.crc32(np.ascontiguousarray(block).data, checksum)
            matrix.flush()
            write_manifest(note, {"rows": done, "checksum": checksum})
            advance(len(block))


def _so_far(partial: Path, note: Path, shape: tuple[int, ...], dtype: str) -> tuple[int, int]:
    """How many rows a stopped run left, and their checksum; none, where they are not those that were written."""
    with contextlib.suppress(Exception):  # whatever a damaged file leads NumPy to: it is only a cache
        state, matrix = read_manifest(note), np.load(partial, mmap_mode="r")
        if (matrix.shape, matrix.dtype) != (shape, np.dtype(dtype)):
            raise ValueError(partial)
        rows, checksum = matrix[: state["rows"]], 0
        for begin in range(0, len(rows), ROWS_AT_ONCE):
            checksum = zlib.crc32(np.ascontiguousarray(rows[begin : begin + ROWS_AT_ONCE]).data, checksum)
        if (len(rows), checksum) == (state["rows"], state["checksum"]):
            return len(rows), checksum
    remove(note)  # it may speak of a file that already has its final name
    return 0, 0
