"""All randomness comes from one seed, through generators named after what they are for."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

import numpy as np
import torch


def derive(seed: int, *path: str | int) -> int:
    """A 63-bit seed for one purpose: the same seed and path always give the same number."""
    text = "/".join([str(seed), *map(str, path)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *path: str | int) -> torch.Generator:
    """A CPU generator for one purpose, for example `generator(seed, "distil", iteration)`.

    Because each iteration has its own, a resumed run needs no saved random state.
    """
    return torch.Generator().manual_seed(derive(seed, *path))


def numpy_generator(seed: int, *path: str | int) -> np.random.Generator:
    """The same for NumPy."""
    return np.random.default_rng(derive(seed, *path))


@contextlib.contextmanager
def global_seed(seed: int, *path: str | int) -> Iterator[None]:
    """Run library code that draws from torch's global generator, and leave that generator as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(derive(seed, *path))
        yield
