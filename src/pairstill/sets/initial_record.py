"""What the pairs started from, kept in the run folder so that it can be shown beside what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from pairstill.runtime.files import read_sealed, write_sealed

FILE = "initial.safetensors"


@dataclass(frozen=True)
class InitialPairs:
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


def write_initial_pairs(run: Path, pairs: InitialPairs) -> None:
    """Keep the initial pairs in a run folder."""
    tensors = {"pictures": pairs.pictures, "texts": pairs.texts.contiguous()}
    write_sealed(run / FILE, tensors, {"captions": pairs.captions, "cells": pairs.cells})


def read_initial_pairs(run: Path) -> InitialPairs | None:
    """The first pairs of a run, or None where it kept none."""
    if not (run / FILE).exists():
        return None
    tensors, record = read_sealed(run / FILE)
    return InitialPairs(tensors["pictures"], tensors["texts"], record["captions"], record["cells"])
