"""DistilledSet: the synthetic pairs, on disk as a folder that proves itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pairstill.errors import PairstillError
from pairstill.runtime.files import (
    digest_of,
    read_json,
    read_tensors,
    sha256,
    write_manifest,
    write_tensors,
    write_text,
)
from pairstill.runtime.row_matrix import RowMatrix, blocks
from pairstill.sets.cards import dataset_card

FORMAT = 1
CAPTIONS_AT_ONCE = 65_536


@dataclass(frozen=True)
class DistilledSet(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """N synthetic pairs.

    Attributes:
        images: Normalised pixels [N, 3, S, S]; (x * std + mean) is an image in 0..1.
        texts: Text embeddings [N, d_t]: outputs of the frozen text encoder, before the projector.
        captions: For each pair the real captions nearest to its text, nearest first.
        info: Where the set comes from: method, settings, seed, towers, encoders, normalisation, dataset.
        similarity: Soft targets [N, N] that students train with, where a method learnt them.
    """

    images: Tensor
    texts: Tensor
    captions: Sequence[Sequence[str]]
    info: Mapping[str, Any] = field(default_factory=dict)
    similarity: Tensor | None = None

    def __post_init__(self) -> None:
        count = len(self.images)
        if self.images.ndim != 4 or self.images.shape[1] != 3 or self.texts.ndim != 2:
            raise PairstillError(
                f"a distilled set needs images [N, 3, S, S] and texts [N, d], not {tuple(self.images.shape)} and "
                f"{tuple(self.texts.shape)}."
            )
        if len(self.texts) != count or len(self.captions) != count:
            raise PairstillError(
                f"a distilled set has as many texts and captions as images, not {len(self.texts)} texts and "
                f"{len(self.captions)} captions for {count} images."
            )
        if self.similarity is not None and self.similarity.shape != (count, count):
            raise PairstillError(
                f"the similarity of {count} pairs is [{count}, {count}], not {list(self.similarity.shape)}."
            )
        tensors = (self.images, self.texts, *([] if self.similarity is None else [self.similarity]))
        if not all(torch.isfinite(tensor).all() for tensor in tensors):
            raise PairstillError("a distilled set must be finite: it has NaN or infinite values.")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.texts[index]

    def pictures(self) -> Tensor:
        """The images as a person sees them: [N, 3, S, S] in 0..1, what lies outside clipped."""
        normalisation = self.info["normalisation"]
        mean = torch.tensor(normalisation["mean"]).reshape(1, 3, 1, 1)
        std = torch.tensor(normalisation["std"]).reshape(1, 3, 1, 1)
        return (self.images * std + mean).clamp(0, 1)

    def save(self, folder: Path) -> None:
        """Write the set. `distilled.json` comes last: a folder without it is not a set."""
        (folder / "distilled.json").unlink(missing_ok=True)
        write_tensors(folder / "images.safetensors", {"images": self.images})
        write_tensors(folder / "texts.safetensors", {"texts": self.texts})
        if self.similarity is not None:
            write_tensors(folder / "similarity.safetensors", {"similarity": self.similarity})
        lines = (
            json.dumps({"pair": i, "nearest": list(near)}, ensure_ascii=False) for i, near in enumerate(self.captions)
        )
        write_text(folder / "captions.jsonl", "".join(f"{line}\n" for line in lines))
        write_text(folder / "README.md", dataset_card(self))
        body = {"format": FORMAT, "pairs": len(self), "info": dict(self.info), "sha256": self._hashes(folder)}
        write_manifest(folder / "distilled.json", body)

    def _hashes(self, folder: Path) -> dict[str, str]:
        names = ["images.safetensors", "texts.safetensors", "captions.jsonl", "README.md"]
        if self.similarity is not None:
            names.append("similarity.safetensors")
        return {name: sha256(folder / name) for name in names}


def load(folder: str | Path) -> DistilledSet:
    """Load a distilled set, after checking its format and the hash of every file, or an export of one.

    Nothing is unpickled.
    """
    folder = Path(folder)
    if (folder / "export.json").exists():
        from pairstill.sets.exports import load_export

        return load_export(folder)
    manifest = _read_manifest(folder)
    for name, expected in manifest["sha256"].items():
        if Path(name).name != name or name in ("", ".."):
            raise PairstillError(f"{folder / 'distilled.json'} names a file outside its folder: {name!r}.")
        if sha256(folder / name) != expected:
            raise PairstillError(
                f"{folder / name} was changed after the set was made: its hash is not the one in distilled.json. "
                "Get the set again from where it came."
            )
    similarity = None
    if "similarity.safetensors" in manifest["sha256"]:
        similarity = _tensor(folder, "similarity")
    lines = (folder / "captions.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    captions = [json.loads(line)["nearest"] for line in lines]
    return DistilledSet(_tensor(folder, "images"), _tensor(folder, "texts"), captions, manifest["info"], similarity)


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "distilled.json"
    if not path.exists():
        hint = " Its run was not finished: add --resume." if (folder / "run").exists() else ""
        raise PairstillError(f"{folder} is not a distilled set: it has no distilled.json.{hint}")
    manifest = read_json(path)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise PairstillError(f"{path} does not describe a distilled set: it has no format version.")
    if manifest["format"] > FORMAT:
        raise PairstillError(
            f"{path} has format {manifest['format']}, and this pairstill reads up to {FORMAT}. Upgrade pairstill."
        )
    claimed = manifest.pop("digest", None)
    if claimed != digest_of(manifest) or not isinstance(manifest.get("sha256"), dict):
        raise PairstillError(f"{path} was changed after the set was made: its digest is wrong. Get the set again.")
    missing = {"images.safetensors", "texts.safetensors", "captions.jsonl"} - set(manifest["sha256"])
    if missing:
        raise PairstillError(f"{path} does not vouch for {', '.join(sorted(missing))}.")
    return manifest


def _tensor(folder: Path, name: str) -> Tensor:
    tensors = read_tensors(folder / f"{name}.safetensors")
    if name not in tensors:
        raise PairstillError(f"{folder / name}.safetensors holds no tensor '{name}'.")
    return tensors[name]


@torch.no_grad()
def nearest_captions(texts: Tensor, real: RowMatrix, captions: Sequence[str], count: int = 3) -> list[list[str]]:
    """For each text embedding [N, d] the `count` different captions whose embeddings [C, d] are nearest in cosine.

    Exact, in one pass over the captions: to build an index of them would take longer than to ask all of them once.
    """
    queries, wanted = F.normalize(texts, dim=-1), 4 * count
    scores, rows = torch.empty(len(texts), 0), torch.empty(len(texts), 0, dtype=torch.int64)
    for start, block in blocks(real, CAPTIONS_AT_ONCE):
        best = (queries @ F.normalize(block, dim=-1).T).topk(min(wanted, len(block)), dim=1)
        scores, rows = torch.cat([scores, best.values], dim=1), torch.cat([rows, start + best.indices], dim=1)
        order = scores.argsort(dim=1, descending=True, stable=True)[:, :wanted]
        scores, rows = scores.gather(1, order), rows.gather(1, order)
    return [list(dict.fromkeys(captions[row] for row in near))[:count] for near in rows.tolist()]
