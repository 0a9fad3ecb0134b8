"""pairstill distils an image-caption dataset into a few hundred synthetic pairs that train a retrieval model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# OpenMP threads spin while they wait; by default for so long that small steps become many times slower as soon as
# another process wants the cores (docs/log.md has the figures). It only counts when set before torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

if TYPE_CHECKING:
    from pairstill.api import distill, evaluate, import_experts, prepare, train_experts, train_student
    from pairstill.errors import PairstillError
    from pairstill.runtime.launchers import OnRay, Processes
    from pairstill.sets.distilled_set import DistilledSet, load
    from pairstill.sets.exports import export
    from pairstill.sets.exports.push import push_to_hub
    from pairstill.sets.saved_student import Student, load_student
    from pairstill.towers.passes import Passes
    from pairstill.towers.two_tower import Towers
    from pairstill.training.training_recipe import Recipe

__all__ = [
    "DistilledSet",
    "OnRay",
    "PairstillError",
    "Passes",
    "Processes",
    "Recipe",
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
    "DistilledSet": "sets.distilled_set",
    "OnRay": "runtime.launchers",
    "PairstillError": "errors",
    "Passes": "towers.passes",
    "Processes": "runtime.launchers",
    "Recipe": "training.training_recipe",
    "Student": "sets.saved_student",
    "Towers": "towers.two_tower",
    "export": "sets.exports",
    "load": "sets.distilled_set",
    "load_student": "sets.saved_student",
    "push_to_hub": "sets.exports.push",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import pairstill` is instant."""
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module 'pairstill' has no attribute '{name}'")
    return getattr(import_module(f"pairstill.{_HOMES.get(name, 'api')}"), name)
