"""Vectors to compute with."""

import torch
import torch.nn.functional as F


def unit(*shape, seed=0):
    """Rows of length 1 in random directions."""
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)
