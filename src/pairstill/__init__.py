"""pairstill distils an image-caption dataset into a few hundred synthetic pairs that train a retrieval model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# OpenMP threads spin while they wait; by default for so long that small steps become many times slower as soon as
# another process wants the cores (docs/log.md has the figures). It only counts when set before torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

if TYPE_CHECKING:
    from pairstill.api import distill, evaluate, import_experts, prepare, train_experts, train_student
    from pairstill.distilled import DistilledSet, load
    from pairstill.errors import PairstillError
    from pairstill.exports import export
    from pairstill.exports.push import push_to_hub
    from pairstill.student import Student, load_student
    from pairstill.towers import Towers

__all__ = [
    "DistilledSet",
    "PairstillError",
    "Student",
    "Towers",
    "distill",
    "evaluate",
    "export",
    "import_experts",
    "load",
    "load_student",
    "prepare",
    "push_to_hub",
    "train_experts",
    "train_student",
]

_HOMES = {
    "DistilledSet": "distilled",
    "PairstillError": "errors",
    "Student": "student",
    "Towers": "towers",
    "export": "exports",
    "load": "distilled",
    "load_student": "student",
    "push_to_hub": "exports.push",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import pairstill` is instant."""
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module 'pairstill' has no attribute '{name}'")
    return getattr(import_module(f"pairstill.{_HOMES.get(name, 'api')}"), name)
