"""Distilled sets in the forms that other tools read: a Hugging Face dataset, WebDataset shards, a folder of PNG files.

Images become 8-bit there: what lies outside black...white is clipped, and `export.json` says how much that was.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pairstill.errors import PairstillError, unknown
from pairstill.runtime.files import remove, write_text
from pairstill.sets.distilled_set import DistilledSet, load
from pairstill.sets.exports import hub_dataset, plain_folder, shards
from pairstill.sets.exports.parts import UNFINISHED, Parts, read_record, write_record
from pairstill.sets.run_record import read_run_record, scores_of

FORMATS: dict[str, tuple[Callable[[Parts, Path], None], Callable[[Path], Parts]]] = {
    "hf": (hub_dataset.write, hub_dataset.read),
    "webdataset": (shards.write, shards.read),
    "folder": (plain_folder.write, plain_folder.read),
}


def export(distilled: str | Path, out: str | Path, to: str = "hf") -> Path:
    """Write a distilled set in another form; returns the folder."""
    if to not in FORMATS:
        raise unknown("form of export", to, FORMATS)
    folder = Path(out)
    if folder.exists() and any(folder.iterdir()) and not _was_stopped(folder, to):
        raise PairstillError(f"{folder} is not empty. Choose another --out.")
    made = load(distilled)
    parts = Parts.of(made, scores_of([read_run_record(Path(distilled))]))
    write_text(folder / UNFINISHED, to)
    FORMATS[to][0](parts, folder)
    write_record(folder, to, parts)
    remove(folder / UNFINISHED)
    return folder


def _was_stopped(folder: Path, to: str) -> bool:
    """Whether all that is in a folder is part of an export of the same form that was not finished."""
    marker = folder / UNFINISHED
    return marker.exists() and marker.read_text(encoding="utf-8") == to


def load_export(folder: str | Path) -> DistilledSet:
    """A distilled set out of an export, in any of its forms; its images have the 8 bits that the export has."""
    folder = Path(folder)
    record = read_record(folder)
    if record["form"] not in FORMATS:
        raise unknown("form of export", record["form"], FORMATS)
    return FORMATS[record["form"]][1](folder).to_set(record["info"])
