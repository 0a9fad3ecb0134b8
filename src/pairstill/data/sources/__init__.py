"""From a name, a file or a folder to a PairDataset. A kind of source is a line in `SOURCES`."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import cast

from pairstill.data.pair_dataset import PairDataset
from pairstill.data.sources.source_spec import OnBad, SourceSpec
from pairstill.errors import PairstillError, unknown

__all__ = ["SOURCES", "OnBad", "Source", "SourceSpec", "detect", "open_source"]

Opener = Callable[[str, SourceSpec, Path | None], PairDataset]
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:[\w.-]+)?")
FILE_ENDINGS = (".json", ".jsonl", ".csv", ".txt", ".parquet", ".tar", ".zip", ".gz")


@dataclass(frozen=True)
class Source:
    """A kind of source: its opener as `module:function`, imported when first used, and one line about it."""

    opener: str
    summary: str

    def open(self, place: str, spec: SourceSpec, cache: Path | None) -> PairDataset:
        """Open what lies at `place`."""
        module, function = self.opener.split(":")
        opener = cast(Opener, getattr(import_module(f"pairstill.data.sources.{module}"), function))
        return opener(place, spec, cache)


SOURCES = {
    "emoji": Source("emoji:open_emoji", "the embedded set: 64 px emoji of seven art styles"),
    "karpathy": Source("karpathy:open_karpathy", "Karpathy's JSON: Flickr8k, Flickr30k, COCO"),
    "folder": Source("folder:open_folder", "images with metadata.jsonl, metadata.csv or captions.csv/.txt"),
    "parquet": Source("hub:open_parquet", "one or more Parquet files"),
    "webdataset": Source("hub:open_webdataset", "WebDataset shards: .tar files, {000..012} or * patterns"),
    "hf": Source("hub:open_hub", "a dataset on the Hugging Face Hub: owner/name or hf:owner/name:config"),
}


def open_source(spec: SourceSpec, cache: Path | None = None) -> PairDataset:
    """Open the pairs that `spec` describes.

    Args:
        spec: What to open.
        cache: Folder for streamed rows and converted files; a folder of the user's cache when not given.

    Raises:
        PairstillError: The source does not exist, or something in it is wrong.
    """
    kind, place = detect(spec.source)
    return SOURCES[kind].open(place, spec, cache)


def detect(source: str) -> tuple[str, str]:
    """The kind of a source and its place: by its prefix (`folder:...`), or by what is on disk.

    Raises:
        PairstillError: There is no such file or folder, and it does not look like a name on the Hub.
    """
    prefix, colon, rest = source.partition(":")
    if source == "emoji":
        return "emoji", ""
    if colon and re.fullmatch(r"[A-Za-z]{2,}", prefix) and not Path(source).exists():
        if prefix not in SOURCES or prefix == "emoji" or not rest:
            raise unknown("kind of source", prefix, (f"{kind}:..." for kind in SOURCES if kind != "emoji"))
        return prefix, rest
    path = Path(source).expanduser()
    kind = _kind_of_folder(path) if path.is_dir() else _kind_of_file(source, path)
    if kind is not None:
        return kind, source
    if not path.exists() and HUB_NAME.fullmatch(source) and not source.lower().endswith(FILE_ENDINGS):
        return "hf", source
    what = "is nothing that can be read as pairs" if path.exists() else "does not exist"
    known = "".join(f"\n  {name:<11} {entry.summary}" for name, entry in SOURCES.items())
    raise PairstillError(f"source '{source}' {what}. A source is one of:{known}")


def _kind_of_folder(path: Path) -> str | None:
    """By the files in it."""
    from pairstill.data.sources.folder import TABLES

    if any(path.glob("dataset_*.json")):
        return "karpathy"
    if any((path / name).is_file() for name in TABLES):
        return "folder"
    if next(path.rglob("*.parquet"), None):
        return "parquet"
    return "webdataset" if any(path.glob("*.tar")) else None


def _kind_of_file(source: str, path: Path) -> str | None:
    """By the ending; a pattern counts when it is one of shards or Parquet files."""
    is_pattern = "{" in source or glob.has_magic(source)
    if not is_pattern and not path.is_file():
        return None
    endings = {".json": "karpathy", ".parquet": "parquet", ".tar": "webdataset"}
    tables = {".jsonl": "folder", ".csv": "folder", ".txt": "folder"}
    return {**endings, **({} if is_pattern else tables)}.get(path.suffix.lower())
