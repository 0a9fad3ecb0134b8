"""SourceSpec: where the pairs come from, as one value that can be saved beside what was made of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pairstill.data.pair_dataset import is_unicode
from pairstill.errors import PairstillError, holds_secret, unknown

OnBad = Literal["error", "skip"]


@dataclass(frozen=True)
class SourceSpec:
    """What to open and how to read it.

    Attributes:
        source: `emoji`, a file or folder, shards, or a dataset on the Hugging Face Hub.
        images: Folder of the images, when it is not beside the annotations.
        image_column: Column that holds the image or its file name; found by itself when not given.
        caption_column: Column that holds the caption or captions.
        split_column: Column that says train, val or test.
        val_fraction: Share of images for validation where the source has no such split.
        test_fraction: Share of images for testing where the source has no such split.
        streaming: Read rows one by one into a cache instead of fetching whole files first.
        limit: At most this many images of each split; when streaming, this many rows of each stored split.
        seed: Seed of a split that is made here.
        on_bad: `error` stops at a missing file or broken row; `skip` leaves it to `check` to drop and count.
    """

    source: str
    images: str | None = None
    image_column: str | None = None
    caption_column: str | None = None
    split_column: str | None = None
    val_fraction: float = 0.1
    test_fraction: float = 0.1
    streaming: bool = False
    limit: int | None = None
    seed: int = 0
    on_bad: OnBad = "error"

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise PairstillError("source is empty. Give a file, a folder, a Hub name, or 'emoji'.")
        for name in ("source", "images"):
            if not is_unicode(getattr(self, name) or ""):
                raise PairstillError(f"{name} is {getattr(self, name)!r}, which is no valid text. Rename the folder.")
            if holds_secret(getattr(self, name) or ""):
                raise PairstillError(
                    f"{name} holds a password or a token ({getattr(self, name)}), which would be kept beside the data. "
                    "For the Hub, log in (hf auth login) or set HF_TOKEN; fetch other data first."
                )
        for name in ("val_fraction", "test_fraction"):
            if not 0 < getattr(self, name) < 1:
                raise PairstillError(f"{name} is {getattr(self, name)}; it must lie between 0 and 1.")
        if self.val_fraction + self.test_fraction >= 1:
            total = self.val_fraction + self.test_fraction
            raise PairstillError(f"val_fraction + test_fraction is {total:g}; nothing is left to train on.")
        if self.limit is not None and self.limit < 1:
            raise PairstillError(f"limit is {self.limit}; it must be at least 1.")
        if self.on_bad not in ("error", "skip"):
            raise unknown("on_bad", self.on_bad, ("error", "skip"))

    def to_dict(self) -> dict[str, Any]:
        """As a dictionary that JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SourceSpec:
        """From what `to_dict` gave.

        Raises:
            PairstillError: A key is not a setting of a source, or `source` is missing.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        for key in values:
            if key not in known:
                raise unknown("source setting", key, known)
        if "source" not in values:
            raise PairstillError("a source needs 'source': a file, a folder, a Hub name, or 'emoji'.")
        return cls(**values)
