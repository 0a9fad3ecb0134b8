"""What a check of a dataset found, for a person and for JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from pairstill.data.pair_dataset import Indices


@dataclass(frozen=True)
class Spread:
    """The least, the mean and the most of some counts."""

    least: int = 0
    mean: float = 0.0
    most: int = 0

    @classmethod
    def of(cls, counts: Indices) -> Spread:
        """Of an array of counts; zeros when it is empty."""
        if counts.size == 0:
            return cls()
        return cls(int(counts.min()), round(float(counts.mean()), 3), int(counts.max()))

    def __str__(self) -> str:
        return f"{self.least} to {self.most}, mean {self.mean:g}"


@dataclass
class Findings:
    """What `pairstill.data.checking.check` found.

    Counts by split, spreads and sizes are of what was kept; the rest counts what was wrong, dropped or not.
    """

    images: dict[str, int] = field(default_factory=dict)
    captions: dict[str, int] = field(default_factory=dict)
    links: dict[str, int] = field(default_factory=dict)
    captions_per_image: Spread = field(default_factory=Spread)
    images_per_caption: Spread = field(default_factory=Spread)
    smallest: tuple[int, int] = (0, 0)
    largest: tuple[int, int] = (0, 0)
    duplicate_images: int = 0
    duplicate_captions: int = 0
    leaks: list[dict[str, str]] = field(default_factory=list)
    in_two_splits: int = 0
    unreadable: list[dict[str, str]] = field(default_factory=list)
    empty_captions: int = 0
    broken_captions: int = 0
    images_without_caption: int = 0
    captions_without_image: int = 0
    dropped_images: int = 0
    dropped_captions: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As a dictionary that JSON can hold."""
        return dataclasses.asdict(self)

    def lines(self) -> list[str]:
        """As lines of text: a table of the splits, the spreads, then only what is worth a look."""
        lines = [f"{'split':<8}{'images':>10}{'captions':>10}{'pairs':>10}"]
        lines += [
            f"{name:<8}{self.images[name]:>10,}{self.captions[name]:>10,}{self.links[name]:>10,}"
            for name in self.images
        ]
        lines.append(f"captions per image: {self.captions_per_image}")
        lines.append(f"images per caption: {self.images_per_caption}")
        lines.append(f"image sizes: {_size(self.smallest)} to {_size(self.largest)}")
        return lines + [f"{label}: {count:,}" for label, count in self._remarks() if count]

    def _remarks(self) -> list[tuple[str, int]]:
        return [
            ("images that occur more than once", self.duplicate_images),
            ("captions that occur more than once", self.duplicate_captions),
            ("images shared by splits (leaks)", len(self.leaks) + self.in_two_splits),
            ("unreadable images", len(self.unreadable)),
            ("empty captions", self.empty_captions),
            ("captions with half a character in them", self.broken_captions),
            ("images without a caption", self.images_without_caption),
            ("captions without an image", self.captions_without_image),
            ("images dropped", self.dropped_images),
            ("captions dropped", self.dropped_captions),
        ]


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]} px"
