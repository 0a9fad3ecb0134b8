"""The card of an export: the set's own, with how this form is loaded and what it lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pairstill.sets.cards import dataset_card
from pairstill.sets.exports.parts import Parts


def export_card(parts: Parts, usage: str, metadata: Mapping[str, Any] | None = None) -> str:
    """README.md of an export."""
    return dataset_card(parts.to_set(parts.info), usage, parts.clipping(), parts.scores, metadata)


def as_row(parts: Parts, row: int) -> dict[str, Any]:
    """One pair's captions and numbers, as plain lists."""
    near = list(parts.captions[row])
    found: dict[str, Any] = {
        "caption": near[0],
        "nearest_captions": near,
        "text_embedding": parts.texts[row].float().tolist(),
    }
    if parts.similarity is not None:
        found["similarity"] = parts.similarity[row].float().tolist()
    return found


def numbers(rows: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Embeddings and similarity of rows made by `as_row`."""
    texts = torch.tensor([row["text_embedding"] for row in rows], dtype=torch.float32)
    if rows[0].get("similarity") is None:
        return texts, None
    return texts, torch.tensor([row["similarity"] for row in rows], dtype=torch.float32)
