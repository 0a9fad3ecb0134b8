"""pairstill distils an image-caption dataset into a few hundred synthetic pairs that train a retrieval model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# OpenMP threads that spin while they wait make torch up to 40 times slower when another process wants the cores
# (docs/log.md). It only counts if it is set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from pairstill.api import distill, evaluate, import_experts, prepare, train_experts
    from pairstill.distilled import DistilledSet, load
    from pairstill.errors import PairstillError
    from pairstill.towers import Towers

__all__ = [
    "DistilledSet",
    "PairstillError",
    "Towers",
    "distill",
    "evaluate",
    "import_experts",
    "load",
    "prepare",
    "train_experts",
]

_HOMES = {
    "DistilledSet": "distilled",
    "PairstillError": "errors",
    "Towers": "towers",
    "load": "distilled",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import pairstill` is instant."""
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module 'pairstill' has no attribute '{name}'")
    return getattr(import_module(f"pairstill.{_HOMES.get(name, 'api')}"), name)
