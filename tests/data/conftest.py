"""Small datasets in memory and small images on disk."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from pairstill.data.pair_dataset import PairDataset
from pairstill.data.sources.image_files import FileImages


@dataclass
class Memory:
    """An image store in memory."""

    data: list[bytes]

    def __len__(self) -> int:
        return len(self.data)

    def name(self, index: int) -> str:
        return f"p{index}.png"

    def read(self, index: int) -> bytes:
        return self.data[index]

    def signature(self) -> str:
        return "memory"


def picture(shade: int, width: int = 6) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, 5), (shade, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def dataset(data: list[bytes] | None = None, captions: list[str] | None = None, **changes: object) -> PairDataset:
    """Six sound images with one caption each, 4 / 1 / 1, changed as asked."""
    data = data or [picture(row, 6 + row) for row in range(6)]
    captions = captions or [f"caption {row}" for row in range(6)]
    values = {
        "links": np.array([[row, row] for row in range(6)]),
        "splits": {"train": np.arange(4), "val": np.array([4]), "test": np.array([5])},
        **changes,
    }
    return PairDataset("toy", Memory(data), captions, **values)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def store(folder: Path, count: int) -> FileImages:
    for row in range(count):
        noise(20 + row % 5, 16, row).save(folder / f"{row}.png")
    names = [f"{row}.png" for row in range(count)]
    return FileImages(folder, names, [f"row {row}" for row in range(count)])
