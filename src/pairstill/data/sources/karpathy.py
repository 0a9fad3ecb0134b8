"""Karpathy's JSON: Flickr8k, Flickr30k and COCO with their usual splits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pairstill.data.pair_dataset import PairDataset
from pairstill.data.sources.assembly import link_captions, rows_of_splits, split_name, take_first
from pairstill.data.sources.image_files import file_images, find_folder
from pairstill.data.sources.source_spec import SourceSpec
from pairstill.errors import PairstillError

LICENSES = {
    "flickr8k": "research use only (photographs from Flickr)",
    "flickr30k": "research use only (photographs from Flickr)",
    "coco": "captions CC-BY-4.0; photographs under the terms of Flickr",
}
SAMPLE = 50


def open_karpathy(place: str, spec: SourceSpec, cache: Path | None) -> PairDataset:
    """Open a Karpathy JSON file, or the folder that holds one. Every sentence is a caption of its own."""
    path = find_json(Path(place).expanduser())
    content = _read(path)
    entries = content["images"]
    wheres = [f"{path.name}, image {row}" for row in range(len(entries))]
    splits = [split_name(entry.get("split"), where) for entry, where in zip(entries, wheres, strict=True)]
    captions_of = [_sentences(entry, where) for entry, where in zip(entries, wheres, strict=True)]
    root, names = _pictures(path, entries, spec)
    images = file_images(root, names, wheres, must_exist=spec.on_bad == "error")
    captions, links = link_captions(captions_of, merge=False)
    name = str(content.get("dataset") or path.stem)
    dataset = PairDataset(name, images, captions, links, rows_of_splits(splits), LICENSES.get(name.lower(), "unknown"))
    return take_first(dataset, spec.limit)


def find_json(path: Path) -> Path:
    """The JSON file itself, or the only `dataset_*.json` of a folder."""
    if not path.is_dir():
        return path
    found = sorted(path.glob("dataset_*.json"))
    if len(found) != 1:
        listed = ", ".join(file.name for file in found) or "none"
        raise PairstillError(f"{path} must hold one dataset_*.json, it holds: {listed}. Give the file itself.")
    return found[0]


def _read(path: Path) -> dict[str, Any]:
    from pairstill.runtime.files import read_json

    read = read_json(path)
    content: dict[str, Any] = read if isinstance(read, dict) else {}
    entries = content.get("images")
    if not isinstance(entries, list) or not entries:
        raise PairstillError(f"{path} is not a Karpathy file: it has no list 'images' with images in it.")
    for row, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("filename"), str):
            raise PairstillError(f"{path.name}, image {row}: no 'filename'.")
    return content


def _sentences(entry: dict[str, Any], where: str) -> list[str]:
    """The captions as written (`raw`)."""
    sentences = entry.get("sentences")
    if not isinstance(sentences, list):
        raise PairstillError(f"{where}: no list 'sentences'.")
    texts = [sentence.get("raw") if isinstance(sentence, dict) else None for sentence in sentences]
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise PairstillError(f"{where}, sentence {row}: no text 'raw'.")
    return [str(text).strip() for text in texts]


def _pictures(path: Path, entries: list[dict[str, Any]], spec: SourceSpec) -> tuple[Path, list[str]]:
    """The folder and the names in it: with COCO's `filepath` (train2014, val2014), or all in one folder."""
    flat = [str(entry["filename"]) for entry in entries]
    nested = [f"{entry['filepath']}/{entry['filename']}" if entry.get("filepath") else "" for entry in entries]
    nested = [deep or plain for deep, plain in zip(nested, flat, strict=True)]
    step = max(1, len(flat) // SAMPLE)
    both = [*nested[::step], *flat[::step]]
    root = find_folder(path.parent, spec.images, both, path)
    in_nested = sum((root / name).is_file() for name in nested[::step])
    in_flat = sum((root / name).is_file() for name in flat[::step])
    return root, flat if in_flat > in_nested else nested
