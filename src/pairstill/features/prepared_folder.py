"""A prepared dataset: checked once, remembered in a folder, refused when its images changed since."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from pairstill.data.captions import StoredCaptions
from pairstill.data.checking import check
from pairstill.data.pair_dataset import ChosenImages, PairDataset
from pairstill.data.sources import SOURCES, SourceSpec, open_source
from pairstill.errors import PairstillError
from pairstill.features.encoded_dataset import EncodedDataset
from pairstill.runtime.files import (
    held_alone,
    read_manifest,
    read_tensors,
    sha256,
    write_manifest,
    write_tensors,
    write_text,
)
from pairstill.runtime.progress import progress
from pairstill.towers.image_encoder import load_image_encoder
from pairstill.towers.passes import Passes
from pairstill.towers.text_encoder import load_text_encoder
from pairstill.towers.two_tower import Towers

FORMAT = 1
PAIRS = ("pairs.safetensors", "captions.jsonl")


@dataclass(frozen=True)
class PreparedDataset:
    """A folder with `prepared.json`, the pairs themselves, and the feature cache."""

    folder: Path
    dataset: PairDataset
    towers: Towers

    def encoded(
        self,
        towers: Towers | None = None,
        workers: int = 0,
        device: str = "cpu",
        passes: Passes = Passes(),  # noqa: B008 (a frozen value)
    ) -> EncodedDataset:
        """The dataset through towers (those it was prepared for, unless others are given)."""
        return EncodedDataset(self.dataset, towers or self.towers, self.folder / "features", workers, device, passes)


def prepare(spec: SourceSpec, folder: Path, towers: Towers, workers: int = 0) -> tuple[PreparedDataset, list[str]]:
    """Open, check and remember a dataset; returns it with what was found, as lines for a person.

    A folder that already holds the same dataset is used as it is, with the new towers.
    """
    absolute = dataclasses.replace(spec, source=_absolute(spec.source), images=spec.images and _absolute(spec.images))
    with held_alone(folder):
        done = (folder / "prepared.json").exists()
        return _again(absolute, folder, towers) if done else _first_time(absolute, folder, towers, workers)


def _first_time(spec: SourceSpec, folder: Path, towers: Towers, workers: int) -> tuple[PreparedDataset, list[str]]:
    load_image_encoder(towers.image, towers.image_output)  # what can't be had is said before anything long
    load_text_encoder(towers.text, towers.text_pooling)
    opened = open_source(spec, folder / "source")
    with progress("checking images", len(opened.images)) as advance:
        seen = 0

        def report(done: int, total: int) -> None:
            nonlocal seen
            advance(done - seen)
            seen = done

        dataset, findings = check(opened, workers, spec.on_bad, report)
    dropped = len(dataset.images) != len(opened.images)
    _write_pairs(folder, dataset, dropped)
    write_manifest(
        folder / "prepared.json",
        {
            "format": FORMAT,
            "name": dataset.name,
            "license": dataset.license,
            "source": spec.to_dict(),
            "signature": opened.images.signature(),
            "annotations": opened.annotations,
            "fingerprint": dataset.fingerprint,
            "sha256": {name: sha256(folder / name) for name in PAIRS},
            "findings": findings.to_dict(),
            "summary": findings.lines(),
            "towers": towers.to_dict(),
        },
    )
    return PreparedDataset(folder, dataset, towers), findings.lines()


def _again(spec: SourceSpec, folder: Path, towers: Towers) -> tuple[PreparedDataset, list[str]]:
    record = read_manifest(folder / "prepared.json")
    if record.get("source") != json.loads(json.dumps(spec.to_dict())):
        raise PairstillError(
            f"{folder} holds another dataset or other options ({record.get('source')}). Choose another --out."
        )
    prepared = dataclasses.replace(open_prepared(folder), towers=towers)
    write_manifest(folder / "prepared.json", {**record, "towers": towers.to_dict()})
    return prepared, list(record["summary"])


def _absolute(place: str) -> str:
    """A path that still holds when a later command runs elsewhere; names that are no paths stay as they are."""
    kind, colon, rest = place.partition(":")
    if colon and kind in SOURCES and kind != "hf":
        return f"{kind}:{_absolute(rest)}"
    path = Path(place).expanduser()
    looks_like_files = path.exists() or "*" in place or "{" in place
    return str(path.resolve()) if looks_like_files else place


def _write_pairs(folder: Path, dataset: PairDataset, dropped: bool) -> None:
    tensors = {"links": torch.from_numpy(np.ascontiguousarray(dataset.links))}
    for name, rows in dataset.splits.items():
        tensors[f"split.{name}"] = torch.from_numpy(np.ascontiguousarray(rows))
    assert dataset.digests is not None, "a dataset is checked before it is written"
    tensors["digests"] = torch.from_numpy(dataset.digests.copy())
    if dropped and isinstance(dataset.images, ChosenImages):
        tensors["kept"] = torch.from_numpy(dataset.images.rows)
    write_tensors(folder / "pairs.safetensors", tensors)
    write_text(folder / "captions.jsonl", "".join(json.dumps(c, ensure_ascii=False) + "\n" for c in dataset.captions))


def open_prepared(folder: str | Path) -> PreparedDataset:
    """Open what `prepare` made; a source whose images or captions changed since is refused."""
    folder = Path(folder)
    if not (folder / "prepared.json").exists():
        raise PairstillError(f"{folder} is not a prepared dataset. Make one: pairstill prepare SOURCE --out {folder}.")
    record = read_manifest(folder / "prepared.json")
    if record.get("format", FORMAT + 1) > FORMAT:
        raise PairstillError(f"{folder / 'prepared.json'} is damaged or from a newer pairstill. Prepare it again.")
    source = open_source(SourceSpec.from_dict(record["source"]), folder / "source")
    changed = PairstillError(
        f"the images or captions of {record['source']['source']} changed since {folder} was prepared. "
        "Prepare them again into another folder."
    )
    if record.get("annotations", source.annotations) != source.annotations:
        raise changed
    for name, expected in record["sha256"].items():
        if sha256(folder / name) != expected:
            raise PairstillError(f"{folder / name} was changed after it was written. Prepare the dataset again.")
    dataset = _read_pairs(folder, record["name"], record["license"], source)
    signature = source.images.signature()
    if signature != record["signature"]:
        dataset = dataclasses.replace(dataset, digests=None)  # something was touched: read every image again
    if dataset.fingerprint != record["fingerprint"]:
        raise changed
    if signature != record["signature"]:
        with contextlib.suppress(PairstillError):  # in a folder that can't be written, it is read again each time
            write_manifest(folder / "prepared.json", {**record, "signature": signature})
    return PreparedDataset(folder, dataset, Towers.from_dict(record["towers"]))


def _read_pairs(folder: Path, name: str, license: str, source: PairDataset) -> PairDataset:
    tensors = {key: value.numpy() for key, value in read_tensors(folder / "pairs.safetensors").items()}
    images = ChosenImages(source.images, tensors["kept"]) if "kept" in tensors else source.images
    return PairDataset(
        name=name,
        images=images,
        captions=StoredCaptions(folder / "captions.jsonl"),
        links=tensors["links"],
        splits={key.removeprefix("split."): rows for key, rows in tensors.items() if key.startswith("split.")},
        license=license,
        digests=tensors["digests"],
    )
