"""Images in Arrow tables, read one by one from memory-mapped files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pairstill.errors import PairstillError


@dataclass(frozen=True)
class ArrowImages:
    """An image store over the image column of one or more Hugging Face tables.

    Attributes:
        tables: Each a `datasets.Dataset` of the image column only; it pickles as the names of its files.
        column: That column.
        labels: What to call each table.
        roots: Folders from which an image may be read that is only named, not stored, in the table.
    """

    tables: tuple[Any, ...]
    column: str
    labels: tuple[str, ...]
    roots: tuple[str, ...]

    @cached_property
    def _ends(self) -> Any:
        return np.cumsum([len(table) for table in self.tables])

    def _find(self, index: int) -> tuple[int, int]:
        """Table and row of an image."""
        table = int(np.searchsorted(self._ends, index, side="right"))
        return table, index - (int(self._ends[table - 1]) if table else 0)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def name(self, index: int) -> str:
        """Table and row."""
        table, row = self._find(index)
        return f"{self.labels[table]}, row {row}"

    def read(self, index: int) -> bytes:
        """The encoded image."""
        table, row = self._find(index)
        return encoded(self.tables[table][row][self.column], self.roots, self.name(index))

    def signature(self) -> str:
        """Digest of the tables' own fingerprints."""
        prints = "".join(table._fingerprint for table in self.tables)
        return hashlib.sha256(prints.encode()).hexdigest()[:16]


def encoded(value: Any, roots: tuple[str, ...], name: str) -> bytes:
    """The bytes of an image cell: bytes, or a structure of bytes and path.

    A path is followed only on the Hub or below one of `roots`: a table must not make us read other files.
    """
    if isinstance(value, bytes):
        return value
    if not isinstance(value, Mapping):
        raise PairstillError(f"{name}: there is no image. Drop the row or set image_column.")
    if value.get("bytes") is not None:
        return bytes(value["bytes"])
    path = value.get("path")
    if not path:
        raise PairstillError(f"{name}: there is no image. Drop the row.")
    *archives, place = path.split("::")
    if place.startswith("hf://") and all(part.startswith(("zip://", "tar://")) for part in archives):
        import fsspec  # type: ignore[import-untyped]

        with fsspec.open(path, "rb") as file:
            return bytes(file.read())
    return _read_below(path, roots, name)


def _read_below(path: str, roots: tuple[str, ...], name: str) -> bytes:
    for root in roots:
        real = Path(os.path.realpath(Path(root) / path))
        if real.is_relative_to(os.path.realpath(root)):
            try:
                return real.read_bytes()
            except OSError as error:
                problem = error.strerror or str(error)
                raise PairstillError(f"{name}: {real}: {problem}. Restore the file or drop the row.") from error
    raise PairstillError(
        f"{name}: the image's name {path!r} leads out of {' and '.join(roots)}. Store the image itself in the table."
    )
