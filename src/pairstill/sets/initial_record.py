"""What the pairs started from, kept in the run folder so that it can be shown beside what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pairstill.distilled import nearest_captions
from pairstill.encoded import EncodedSplit
from pairstill.files import read_sealed, write_sealed
from pairstill.methods.contract import Context

FILE = "initial.safetensors"


@dataclass(frozen=True)
class FirstPairs:
    """The first pairs of a run.

    Attributes:
        pictures: As bytes, [N, 3, S, S].
        texts: Their embeddings, [N, d_t].
        captions: For each pair the real captions nearest to its text.
        cells: For each pair how many training pairs are nearer to it than to any other; None where it was no real pair.
    """

    pictures: Tensor
    texts: Tensor
    captions: list[list[str]]
    cells: list[int] | None


def keep_first_pairs(
    pairs: EncodedSplit, context: Context, images: Tensor, texts: Tensor, cells: Tensor | None
) -> None:
    """Write the first pairs into the run folder; of real ones, `cells` says which is nearest to each training pair."""
    folder = context.run.folder
    if (folder / FILE).exists():
        return
    pictures = context.encoded.image_encoder.denormalise(images).clamp(0, 1)
    tensors = {"pictures": (pictures * 255).round().to(torch.uint8).contiguous(), "texts": texts.contiguous()}
    sizes = None if cells is None else torch.bincount(cells).tolist()
    captions = nearest_captions(texts, pairs.pairs.texts, pairs.captions)
    write_sealed(folder / FILE, tensors, {"captions": captions, "cells": sizes})


def read_first_pairs(run: Path) -> FirstPairs | None:
    """The first pairs of a run, or None where it kept none."""
    if not (run / FILE).exists():
        return None
    tensors, record = read_sealed(run / FILE)
    return FirstPairs(tensors["pictures"], tensors["texts"], record["captions"], record["cells"])
