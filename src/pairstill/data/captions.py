"""Captions that stay on disk, and some of them by number."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np

from pairstill.data.pair_dataset import Indices

BYTES_AT_ONCE = 1 << 24


class StoredCaptions(Sequence[str]):
    """The lines of a file, each a JSON string: mapped into memory, and read when they are asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._bytes = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
        parts = (self._bytes[start : start + BYTES_AT_ONCE] for start in range(0, len(self._bytes), BYTES_AT_ONCE))
        ends = [number * BYTES_AT_ONCE + np.flatnonzero(part == ord("\n")) for number, part in enumerate(parts)]
        self._bounds = np.concatenate([[-1], *ends])  # a caption lies between two ends of lines

    def __reduce__(self) -> tuple[type[StoredCaptions], tuple[Path]]:
        return StoredCaptions, (self._path,)  # another process maps the file itself

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __iter__(self) -> Iterator[str]:
        with self._path.open("rb") as file:
            yield from map(json.loads, file)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        number = range(len(self))[row]
        if isinstance(number, range):
            return [self[n] for n in number]
        start, end = self._bounds[number] + 1, self._bounds[number + 1]
        return str(json.loads(self._bytes[start:end].tobytes()))


class ChosenCaptions(Sequence[str]):
    """Some captions of others, by number."""

    def __init__(self, of: Sequence[str], rows: Indices) -> None:
        self._of, self._rows = of, rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self._of[n] for n in self._rows[row].tolist()]
        return self._of[int(self._rows[row])]
