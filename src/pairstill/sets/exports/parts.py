"""What every form of export holds: images of 8 bits, embeddings, captions, similarity, and how much was clipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairstill.errors import PairstillError
from pairstill.runtime.files import read_manifest, sha256, write_manifest
from pairstill.sets.distilled_set import DistilledSet

UNFINISHED = "export.unfinished"
"""Says that a folder belongs to an export, and to which form, until all of it is there."""

Pictures = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Parts:
    """A set on its way into or out of an export.

    Attributes:
        pictures: [N, S, S, 3].
        texts: Embeddings [N, d_t].
        captions: The nearest real captions of each pair.
        similarity: [N, N], where the set has one.
        info: The set's own.
        clipped: The share of pixel values that lay outside black...white, and how far on average, of 255.
        scores: What the set was found to be worth.
    """

    pictures: Pictures
    texts: Tensor
    captions: Sequence[Sequence[str]]
    similarity: Tensor | None = None
    info: dict[str, Any] = field(default_factory=dict)
    clipped: dict[str, float] = field(default_factory=dict)
    scores: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, made: DistilledSet, scores: list[dict[str, Any]]) -> Parts:
        """The parts of a set."""
        mean, std = _normalisation(made.info)
        free = made.images * std + mean
        outside = (free - free.clamp(0, 1)).abs()
        beyond = outside > 0
        clipped = {
            "share": beyond.float().mean().item(),
            "by": 255 * (outside[beyond].mean().item() if beyond.any() else 0.0),
        }
        pictures = (free.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
        return cls(pictures, made.texts, made.captions, made.similarity, dict(made.info), clipped, scores)

    def to_set(self, info: dict[str, Any]) -> DistilledSet:
        """A set again."""
        mean, std = _normalisation(info)
        pixels = torch.from_numpy(np.ascontiguousarray(self.pictures)).permute(0, 3, 1, 2).float() / 255
        return DistilledSet((pixels - mean) / std, self.texts, self.captions, info, self.similarity)

    def clipping(self) -> str:
        """A sentence for the card."""
        if not self.clipped.get("share"):
            return "Images are 8-bit; nothing was clipped."
        share, by = 100 * self.clipped["share"], self.clipped["by"]
        return (
            f"Images are 8-bit: {share:.1f} % of their values lay outside black...white, by {by:.0f} of 255 on "
            "average, and were clipped. The set as pairstill keeps it has the exact values."
        )


def _normalisation(info: dict[str, Any] | Any) -> tuple[Tensor, Tensor]:
    known = info.get("normalisation")
    if not known:
        raise PairstillError(
            "the set does not say how its images were normalised, so they can't be turned into images."
        )
    mean, std = (torch.tensor(known[key]).reshape(1, 3, 1, 1) for key in ("mean", "std"))
    return mean, std


def write_record(folder: Path, form: str, parts: Parts) -> None:
    """`export.json`: what this folder is, written last."""
    whole = (path for path in folder.rglob("*") if path.is_file() and path.name not in (UNFINISHED, "export.json"))
    hashes = {path.relative_to(folder).as_posix(): sha256(path) for path in whole}
    record = {"form": form, "clipped": parts.clipped, "info": parts.info, "sha256": dict(sorted(hashes.items()))}
    write_manifest(folder / "export.json", record)


def read_record(folder: Path) -> dict[str, Any]:
    """What an export says of itself; one whose files were changed since is refused."""
    if not (folder / "export.json").exists():
        raise PairstillError(f"{folder} is not an export of pairstill: it has no export.json.")
    record = read_manifest(folder / "export.json")
    if not {"form", "info"} <= record.keys():
        raise PairstillError(f"{folder / 'export.json'} does not describe an export.")
    for name, expected in record.get("sha256", {}).items():
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise PairstillError(f"{folder / 'export.json'} names a file outside its folder: {name!r}.")
        if sha256(folder / name) != expected:
            raise PairstillError(
                f"{folder / name} was changed after the export: its hash is not the one in export.json."
            )
    return record
