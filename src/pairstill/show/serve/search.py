"""Search the test split of prepared data with saved students: a sentence finds images, an image finds captions."""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from pairstill.data.decoding import decode, to_square
from pairstill.features.prepared_folder import PreparedDataset, open_prepared
from pairstill.runtime.row_matrix import in_memory
from pairstill.sets.saved_student import Student, load_student

SHOWN = 8
THUMBNAIL = 192
_LOADING = threading.Lock()


@dataclass(frozen=True)
class Index:
    """A student with its vectors of all test images [I, d] and test captions [C, d].

    Attributes:
        student: The model.
        images, texts: Unit vectors.
        rows: Which images of the dataset the first are.
        captions: What the second are.
    """

    student: Student
    images: Tensor
    texts: Tensor
    rows: list[int]
    captions: list[str]

    def pictures_for(self, sentence: str) -> list[dict[str, Any]]:
        """The best images for a sentence, best first."""
        scores = self.images @ self.student.encode_texts([sentence])[0]
        best = scores.topk(min(SHOWN, len(scores)))
        return [
            {"row": self.rows[row], "score": round(score, 3)}
            for score, row in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]

    def captions_for(self, picture: bytes) -> list[dict[str, Any]]:
        """The best captions for an image, best first, each once."""
        scores = self.texts @ self.student.encode_images([picture])[0]
        found: dict[str, float] = {}
        for row in scores.topk(min(4 * SHOWN, len(scores))).indices.tolist():
            found.setdefault(self.captions[row], round(scores[row].item(), 3))
        return [{"caption": caption, "score": score} for caption, score in list(found.items())[:SHOWN]]


def index_of(student: Path, data: Path) -> Index:
    """A student and the test split as it sees it; kept for the next question, unless the student has changed."""
    manifest = student / "student.json"
    with _LOADING:  # who asks while it is loaded waits for it, instead of loading it again
        return _index(student, data, manifest.stat().st_mtime_ns if manifest.exists() else 0)


@lru_cache(maxsize=8)
def _index(student: Path, data: Path, changed: int) -> Index:
    model, prepared = load_student(student), _opened(data)
    encoded = prepared.encoded(model.towers)
    split = encoded.split("test")
    with torch.no_grad():
        model.model.eval()
        rows = torch.arange(len(split.pairs.inputs)).split(256)
        images = torch.cat([model.model.encode_image(split.pairs.inputs.take(part)) for part in rows])
        texts = model.model.encode_text(in_memory(split.pairs.texts))
    return Index(model, images, texts, split.images.tolist(), list(split.captions))


def thumbnail(data: Path, row: int) -> bytes | None:
    """A test image of a prepared dataset as a small JPEG; None for any other image."""
    prepared = _opened(data)
    if row not in _test_rows(data):
        return None
    picture = decode(prepared.dataset.images.read(row), str(row))
    file = io.BytesIO()
    square = to_square(picture, min(THUMBNAIL, *picture.size))
    Image.fromarray(square.transpose(1, 2, 0)).save(file, "jpeg", quality=85)
    return file.getvalue()


@lru_cache(maxsize=4)
def _opened(data: Path) -> PreparedDataset:
    return open_prepared(data)


@lru_cache(maxsize=4)
def _test_rows(data: Path) -> frozenset[int]:
    return frozenset(_opened(data).dataset.split("test").images.tolist())
