from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pairstill.data.pair_dataset import PairDataset
from pairstill.data.sources import SourceSpec, open_source

Parquet = Callable[[str, list[dict[str, Any]]], Path]
Shard = Callable[..., Path]


def picture(shade: int, kind: str = "PNG") -> bytes:
    """A small image that differs from those of other shades."""
    buffer = io.BytesIO()
    Image.new("RGB", (12, 9), (shade % 256, shade // 256, 77)).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture
def pictures(tmp_path: Path) -> Callable[..., None]:
    """Write images `0.png`, `1.png`, ... or the given names into a folder."""

    def write(folder: str, names: list[str]) -> None:
        for row, name in enumerate(names):
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture(row))

    return write


@pytest.fixture
def shard(tmp_path: Path) -> Callable[..., Path]:
    """Write a WebDataset shard whose texts are `.txt` or `.json`."""

    def write(name: str, rows: range, ending: str = "txt") -> Path:
        with tarfile.open(tmp_path / name, "w") as tar:
            for row in rows:
                text = f"caption {row}" if ending == "txt" else json.dumps({"caption": [f"caption {row}", "b"]})
                for end, data in (("png", picture(row)), (ending, text.encode())):
                    entry = tarfile.TarInfo(f"{row:04d}.{end}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
        return tmp_path / name

    return write


@pytest.fixture
def parquet(tmp_path: Path) -> Callable[..., Path]:
    """Write rows to a Parquet file."""

    def write(name: str, rows: list[dict[str, Any]]) -> Path:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path

    return write


def opened(source: object, cache: Path, **settings: Any) -> PairDataset:
    return open_source(SourceSpec(str(source), **settings), cache / "cache")


def sizes(dataset: PairDataset) -> dict[str, int]:
    return {name: len(rows) for name, rows in dataset.splits.items()}
