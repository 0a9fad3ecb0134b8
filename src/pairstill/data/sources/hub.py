"""Tables read by Hugging Face `datasets`: the Hub, Parquet files, WebDataset shards; whole or streamed."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pairstill.data.pair_dataset import Indices, PairDataset
from pairstill.data.sources.arrow_images import ArrowImages
from pairstill.data.sources.assembly import (
    SPLIT_NAMES,
    complete_splits,
    link_captions,
    rows_of_splits,
    split_name,
    take_first,
)
from pairstill.data.sources.columns import Columns, cell, find_columns
from pairstill.data.sources.source_spec import SourceSpec
from pairstill.data.sources.streaming import STORED, stream_rows
from pairstill.errors import PairstillError

ROWS_AT_ONCE = 4096
SPLIT_IN_NAME = re.compile(r"(?:^|[-_./])(train|validation|valid|val|dev|test)(?=[-_.\d/]|$)")


@dataclass(frozen=True)
class _Request:
    """What to ask `datasets.load_dataset` for, and how to speak of it."""

    place: str
    arguments: dict[str, Any]
    roots: tuple[str, ...]
    hint: str


def open_parquet(place: str, spec: SourceSpec, cache: Path | None) -> PairDataset:
    """Open a Parquet file, a folder of them, or a pattern."""
    return _open_files(place, "parquet", spec, cache)


def open_webdataset(place: str, spec: SourceSpec, cache: Path | None) -> PairDataset:
    """Open WebDataset shards: `.tar` files with images beside `.txt` or `.json`."""
    return _open_files(place, "webdataset", spec, cache)


def open_hub(place: str, spec: SourceSpec, cache: Path | None) -> PairDataset:
    """Open a dataset on the Hub, `owner/name` or `owner/name:config`.

    With a limit, only so many rows are read. Code from the Hub is never run.
    """
    name, _, config = place.partition(":")
    offline = " HF_HUB_OFFLINE is set, so the Hub was not asked." if os.environ.get("HF_HUB_OFFLINE") else ""
    hint = (
        f"There is no file or folder '{name}' here either.{offline} Check the name and the network. "
        "Local data works without one: folder:DIR, karpathy:FILE, parquet:DIR, webdataset:FILES, emoji."
    )
    from datasets.config import HF_CACHE_HOME

    request = _Request(place, {"path": name, "name": config or None}, (str(HF_CACHE_HOME),), hint)
    return _open(request, replace(spec, streaming=spec.streaming or spec.limit is not None), cache)


def _open_files(place: str, kind: str, spec: SourceSpec, cache: Path | None) -> PairDataset:
    ending = {"parquet": ".parquet", "webdataset": ".tar"}[kind]
    files = find_files(place, ending)
    named = {file: _split_of(file, files) for file in files}
    groups: dict[str, list[str]] = {}
    for file, split in named.items():
        groups.setdefault(split if None not in named.values() and split else "train", []).append(str(file))
    roots = tuple(dict.fromkeys(str(file.parent) for file in files))
    hint = f"Is every one of the {len(files)} files a whole, sound {ending} file of the same columns?"
    return _open(_Request(place, {"path": kind, "data_files": groups}, roots, hint), spec, cache)


def find_files(place: str, ending: str) -> list[Path]:
    """The files of a file, folder, `*` pattern or `{000..012}` pattern, in order."""
    found: list[Path] = []
    for text in expand_braces(place):
        path = Path(text).expanduser()
        if path.is_dir():
            found.extend(sorted(path.rglob(f"*{ending}")))
        elif path.is_file():
            found.append(path)
        else:
            matches = _matches(path) if glob.has_magic(text) else []
            if not matches:
                raise PairstillError(f"source '{place}': there is no {text}.")
            found.extend(matches)
    if not found:
        raise PairstillError(f"source '{place}': no {ending} files there.")
    return [path.resolve() for path in found]


def _matches(pattern: Path) -> list[Path]:
    """Files of a `*` pattern."""
    base = Path(pattern.anchor or ".")
    return sorted(base.glob(str(pattern.relative_to(pattern.anchor))))


def expand_braces(text: str) -> list[str]:
    """`a-{00..02}.tar` and `a-{x,y}.tar` as the names they stand for."""
    match = re.search(r"\{([^{}]*)\}", text)
    if match is None:
        return [text]
    span = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    if span:
        width = len(span[1])
        parts = [f"{number:0{width}d}" for number in range(int(span[1]), int(span[2]) + 1)]
    else:
        parts = match[1].split(",")
    return [full for part in parts for full in expand_braces(text[: match.start()] + part + text[match.end() :])]


def _split_of(file: Path, files: list[Path]) -> str | None:
    """The split that a file's name, or a folder between it and the others' common folder, speaks of."""
    base = os.path.commonpath([path.parent for path in files])
    found = SPLIT_IN_NAME.findall(str(file.relative_to(base)).lower())
    return SPLIT_NAMES[found[-1]] if found else None


def _open(request: _Request, spec: SourceSpec, cache: Path | None) -> PairDataset:
    if spec.streaming:
        return _open_streamed(request, spec, cache)
    tables = _load(request, cache, streaming=False)
    columns = find_columns(next(iter(tables.values())).features, spec, request.place)
    return _pairs(tables, columns, request, spec)


def _load(request: _Request, cache: Path | None, streaming: bool) -> dict[str, Any]:
    """Tables by the name of their split."""
    import datasets

    folder = None if cache is None else str(cache / "arrow")
    try:
        loaded = datasets.load_dataset(**request.arguments, cache_dir=folder, streaming=streaming)
    except Exception as error:  # `datasets` lets through whatever its readers and the network raise
        cause = error.__cause__ or error
        problem = f"{type(error).__name__}: {str(cause).strip()}"
        raise PairstillError(f"{request.place} could not be opened ({problem}). {request.hint}") from error
    tables = dict(loaded.items())
    known = {name: table for name, table in tables.items() if name in SPLIT_NAMES}
    if not known and len(tables) > 1:
        raise PairstillError(f"{request.place} has the splits {', '.join(tables)}; none is train, val or test.")
    return known or {"train": next(iter(tables.values()))}


def _encoded(table: Any, column: str) -> Any:
    """The table with its images left as they are stored."""
    import datasets

    if isinstance(table.features[column], datasets.Image):
        return table.cast_column(column, datasets.Image(decode=False))
    return table


def _open_streamed(request: _Request, spec: SourceSpec, cache: Path | None) -> PairDataset:
    """Fetch the rows into shards, then open the shards."""
    from pairstill.runtime.files import digest_of, read_json, write_json

    root = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pairstill"
    key = digest_of({**spec.to_dict(), "files": list(_status(request))})
    folder = root / "streams" / key
    record = folder / "done.json"
    if not record.exists():  # later commands read what was stored, and need no network
        write_json(record, _store_stream(request, spec, cache, folder))
    done = read_json(record)
    shards = {split: [str(folder / name) for name in names] for split, names in done["shards"].items()}
    stored = replace(request, arguments={"path": "parquet", "data_files": shards})
    kept = replace(STORED, split="split" if done["has_split"] else None)
    return _pairs(_load(stored, root, streaming=False), kept, request, spec)


def _store_stream(request: _Request, spec: SourceSpec, cache: Path | None, folder: Path) -> dict[str, Any]:
    """Write the rows of every split to shards below `folder`; says which, and whether rows name their split."""
    shards: dict[str, list[str]] = {}
    columns = None
    for split, loaded in _load(request, cache, streaming=True).items():
        table = loaded if loaded.features is not None else loaded._resolve_features()
        columns = find_columns(table.features, spec, request.place)
        encoded = _encoded(table, columns.image)
        paths = stream_rows(encoded, columns, split, spec, folder=folder, roots=request.roots)
        shards[split] = [str(path.relative_to(folder)) for path in paths]
    return {"shards": shards, "has_split": bool(columns and columns.split)}


def _status(request: _Request) -> Iterator[tuple[str, int, int]]:
    """Names, sizes and times of local files: other files, other stream."""
    for files in request.arguments.get("data_files", {}).values():
        for file in files:
            status = Path(file).stat()
            yield file, status.st_size, status.st_mtime_ns


def _pairs(tables: dict[str, Any], columns: Columns, request: _Request, spec: SourceSpec) -> PairDataset:
    """Images stay on disk; captions and splits are read now."""
    pictures = [_encoded(table, columns.image).select_columns([columns.image]) for table in tables.values()]
    images = ArrowImages(
        tuple(pictures), columns.image, tuple(f"{request.place} {split}" for split in tables), request.roots
    )
    captions, links = link_captions(map(columns.captions_of, _rows(tables, columns.needed())), merge=True)
    splits = complete_splits(_splits(tables, columns, request.place, spec), spec)
    license_name = next(iter(tables.values())).info.license or "unknown"
    name = request.place.rstrip("/").split("/")[-1]
    return take_first(PairDataset(name, images, captions, links, splits, license_name), spec.limit)


def _rows(tables: dict[str, Any], columns: list[str]) -> Iterator[dict[str, Any]]:
    """Some columns of every row, a block of rows at a time."""
    for table in tables.values():
        for block in table.select_columns(columns).with_format("arrow").iter(ROWS_AT_ONCE):
            yield from block.to_pylist()


def _splits(tables: dict[str, Any], columns: Columns, place: str, spec: SourceSpec) -> dict[str, Indices]:
    """The tables' own splits if there are several, else the split column, else all rows train for now."""
    if columns.split and (len(tables) == 1 or spec.split_column):
        return rows_of_splits(
            split_name(cell(row, columns.split), f"{place}, row {number}")
            for number, row in enumerate(_rows(tables, columns.needed()))
        )
    if len(tables) == 1:
        return {"train": np.arange(len(next(iter(tables.values()))), dtype=np.int64)}
    return rows_of_splits(SPLIT_NAMES[split] for split, table in tables.items() for _ in range(len(table)))
