"""pairstill distils an image-caption dataset into a few hundred synthetic pairs that train a retrieval model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# OpenMP threads spin while they wait; by default for so long that small steps become many times slower as soon as
# another process wants the cores (docs/log.md has the figures). It only counts when set before torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

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
