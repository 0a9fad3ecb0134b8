"""A folder of images with a table of captions: JSON lines or CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pairstill.data.pair_dataset import PairDataset
from pairstill.data.sources.assembly import complete_splits, link_captions, rows_of_splits, split_name, take_first
from pairstill.data.sources.image_files import file_images, find_folder
from pairstill.data.sources.source_spec import SourceSpec
from pairstill.errors import PairstillError, unknown

TABLES = ("metadata.jsonl", "metadata.csv", "captions.csv", "captions.txt")
IMAGE_COLUMNS = ("file_name", "image", "filename", "image_name", "file")
CAPTION_COLUMNS = ("caption", "text", "captions", "comment")
SAMPLE = 50
Result = dict[str, Any]


@dataclass
class _Picture:
    """What the rows of one image say together."""

    where: str
    split: str | None
    captions: list[str] = field(default_factory=list)


def open_folder(place: str, spec: SourceSpec, cache: Path | None) -> PairDataset:
    """Open a folder of images with its table, or the table itself."""
    path = Path(place).expanduser()
    table = find_table(path)
    if table is None:
        if not path.exists():
            raise PairstillError(f"{path} does not exist.")
        raise PairstillError(f"{path} holds none of: {', '.join(TABLES)}.")
    pictures = _gather(table, spec)
    names = list(pictures)
    root = find_folder(table.parent, spec.images, names[:: max(1, len(names) // SAMPLE)], table)
    images = file_images(
        root, names, [picture.where for picture in pictures.values()], must_exist=spec.on_bad == "error"
    )
    captions, links = link_captions([picture.captions for picture in pictures.values()], merge=True)
    splits = rows_of_splits(picture.split or "train" for picture in pictures.values())
    name = table.parent.resolve().name
    return take_first(PairDataset(name, images, captions, links, complete_splits(splits, spec)), spec.limit)


def find_table(path: Path) -> Path | None:
    """The table of a folder, the file itself, or None."""
    if path.is_file():
        return path
    return next((path / name for name in TABLES if (path / name).is_file()), None)


def _gather(table: Path, spec: SourceSpec) -> dict[str, _Picture]:
    """All images of the table in order; rows about the same image are merged."""
    pictures: dict[str, _Picture] = {}
    columns: tuple[str, str, str | None] | None = None
    for line, row in _rows(table):
        where = f"{table.name}, line {line}"
        columns = columns or _columns(row, spec, where)
        name, texts, split = _cells(row, columns, where, spec)
        picture = pictures.setdefault(name, _Picture(where, split))
        if picture.split != split:
            raise PairstillError(
                f"{where}: {name} is in split '{split}' here and in '{picture.split}' at {picture.where}. "
                "An image belongs to one split."
            )
        picture.captions.extend(texts)
    if not pictures:
        raise PairstillError(f"{table} has no rows.")
    return pictures


def _rows(table: Path) -> Iterator[tuple[int, Result]]:
    """Line numbers and rows of a table."""
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            yield from _json_rows(file, table) if table.suffix == ".jsonl" else _csv_rows(file, table)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PairstillError(f"{table} cannot be read: {error}. It must be a text file in UTF-8.") from error


def _json_rows(lines: Any, table: Path) -> Iterator[tuple[int, Result]]:
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            raise PairstillError(f"{table}, line {line}: not JSON ({error}).") from error
        if not isinstance(row, dict):
            raise PairstillError(f'{table}, line {line}: must be an object such as {{"file_name": ...}}.')
        yield line, row


def _csv_rows(lines: Any, table: Path) -> Iterator[tuple[int, Result]]:
    """Rows of a CSV file; the header says whether it is cut by comma, tab, bar or semicolon."""
    header = lines.readline()
    cut = max(",\t|;", key=header.count)
    names = [name.strip() for name in next(csv.reader([header], delimiter=cut), [])]
    reader = csv.DictReader(lines, names, delimiter=cut)
    for row in reader:
        if None in row:
            raise PairstillError(
                f"{table}, line {reader.line_num + 1}: more columns than the header. "
                f"Put quotes around a caption that contains {cut!r}."
            )
        yield reader.line_num + 1, row


def _columns(row: Result, spec: SourceSpec, where: str) -> tuple[str, str, str | None]:
    """The image's column, the captions' and the split's, by the settings or by their usual names."""
    image = _column("image_column", spec.image_column, IMAGE_COLUMNS, row, where)
    caption = _column("caption_column", spec.caption_column, CAPTION_COLUMNS, row, where)
    split = spec.split_column or ("split" if "split" in row else None)
    if split is not None and split not in row:
        raise unknown("split_column", split, row)
    return image, caption, split


def _column(option: str, given: str | None, usual: tuple[str, ...], row: Result, where: str) -> str:
    if given is not None:
        if given not in row:
            raise unknown(option, given, row)
        return given
    found = next((name for name in usual if name in row), None)
    if found is None:
        raise PairstillError(
            f"{where}: none of the columns {', '.join(map(str, row))} is called {', '.join(usual)}. Set {option}."
        )
    return found


def _cells(
    row: Result, columns: tuple[str, str, str | None], where: str, spec: SourceSpec
) -> tuple[str, list[str], str | None]:
    """File name, captions and split of one row."""
    image, caption, split = columns
    name, texts = row.get(image), row.get(caption)
    if not isinstance(name, str) or not name.strip():
        raise PairstillError(f"{where}: '{image}' is empty.")
    texts = texts if isinstance(texts, list) else [texts]
    if spec.on_bad == "skip":
        texts = [text or "" for text in texts]
    if not all(isinstance(text, str) for text in texts):
        raise PairstillError(f"{where}: '{caption}' must be a text or a list of texts.")
    return (
        name.strip(),
        [text.strip() for text in texts],
        split_name(row.get(split), where) if split else None,
    )
