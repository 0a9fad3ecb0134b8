"""Rows that arrive one by one, kept as Parquet shards: what has arrived is not fetched again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pairstill.data.sources.arrow_images import encoded
from pairstill.data.sources.columns import Columns, cell
from pairstill.data.sources.source_spec import SourceSpec
from pairstill.errors import PairstillError

SHARD_ROWS = 512
STORED = Columns("image", ("captions",), "split")


def stream_rows(
    table: Any, columns: Columns, split: str, spec: SourceSpec, *, folder: Path, roots: tuple[str, ...]
) -> list[Path]:
    """Write the rows of one streamed table to shards, and go on after those that are already there.

    Args:
        table: A `datasets.IterableDataset` whose images stay encoded.
        columns: Where its images and captions are.
        split: Name of the table; the first part of the shards' names.
        spec: Its `limit` ends the reading.
        folder: Where the shards go. `<split>.done` says that all are there.
        roots: See `ArrowImages`.

    Returns:
        The shards in order.
    """
    from pairstill.runtime.files import write_json

    shards = sorted(folder.glob(f"{split}-*.parquet"))
    done = folder / f"{split}.done"
    if done.exists():
        return shards
    have = sum(map(_rows_in, shards))
    rest = None if spec.limit is None else max(0, spec.limit - have)
    rows = islice(_rows(table.skip(have), columns, split, spec, roots), rest)
    while batch := _next_rows(rows, have, split, spec):
        path = folder / f"{split}-{len(shards):05d}.parquet"
        _write(path, batch)
        shards.append(path)
        have += len(batch)
    write_json(done, {"rows": have, "shards": len(shards)})
    return shards


def _rows_in(path: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


def _rows(
    table: Any, columns: Columns, label: str, spec: SourceSpec, roots: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """What we keep of each row; an image that cannot be had is empty when bad rows are to be skipped."""
    for row in table:
        try:
            picture = encoded(row.get(columns.image), roots, f"a row of {spec.source}, {label}")
        except PairstillError:
            if spec.on_bad == "error":
                raise
            picture = b""
        split = str(cell(row, columns.split)) if columns.split else None
        yield {"image": picture, "captions": columns.captions_of(row), "split": split}


def _next_rows(rows: Iterator[dict[str, Any]], have: int, split: str, spec: SourceSpec) -> list[dict[str, Any]]:
    try:
        return list(islice(rows, SHARD_ROWS))
    except PairstillError:
        raise
    except Exception as error:  # the network, or any reader of `datasets`
        raise PairstillError(
            f"{spec.source}: reading stopped after {have} rows of {split} ({type(error).__name__}: {error}). "
            "They are kept: run the same command again to go on from there."
        ) from error


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pairstill.runtime.files import atomic

    schema = pa.schema([("image", pa.binary()), ("captions", pa.list_(pa.string())), ("split", pa.string())])
    with atomic(path) as temporary:
        # Encoded images do not get smaller, so compressing them only takes time.
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), temporary, compression="none")
