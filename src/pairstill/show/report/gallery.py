"""The pairs of a set as data for a page: images before and after, captions, and how far each has moved."""

from __future__ import annotations

import base64
import io
from typing import Any

import torch
from torch import Tensor

from pairstill.sets.distilled_set import DistilledSet
from pairstill.sets.initial_record import InitialPairs

BUDGET = 17 * 2**20
"""Bytes of all images of a set; in a page they take a third more. Large sets are compressed more."""
QUALITIES = (88, 75, 60, 40)


def gallery(distilled: DistilledSet, initial: InitialPairs | None) -> dict[str, Any]:
    """What the page's script draws; for a coreset, or a set without its run, only what there is."""
    after = (distilled.pictures() * 255).round().to(torch.uint8)
    before = initial.pictures if initial is not None and initial.pictures.shape == after.shape else None
    moved = (after.float() - before.float()).abs().mean(dim=(1, 2, 3)) if before is not None else None
    if moved is not None and not moved.any():
        before = moved = None
    pictures = _within_budget([after] if before is None else [after, before])
    pairs = []
    for row in range(len(distilled)):
        pair: dict[str, Any] = {"after": pictures[0][row], "captions": list(distilled.captions[row])}
        if before is not None and moved is not None and initial is not None:
            pair |= {"before": pictures[1][row], "first": initial.captions[row], "moved": round(moved[row].item(), 2)}
        if initial is not None and initial.cells is not None:
            pair["cell"] = initial.cells[row]
        pairs.append(pair)
    return {"size": after.shape[-1], "pairs": pairs}


def _within_budget(sets: list[Tensor]) -> list[list[str]]:
    """Every image as a data address, at the best quality that keeps all of them within the budget."""
    for quality in QUALITIES:
        encoded = [[_webp(picture, quality) for picture in pictures] for pictures in sets]
        if sum(len(data) for pictures in encoded for data in pictures) <= BUDGET:
            break
    return [[f"data:image/webp;base64,{base64.b64encode(data).decode()}" for data in pictures] for pictures in encoded]


def _webp(picture: Tensor, quality: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture.permute(1, 2, 0).numpy()).save(file, "webp", quality=quality, method=2)
    return file.getvalue()
