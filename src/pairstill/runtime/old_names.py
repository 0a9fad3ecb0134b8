"""Settings that were renamed: they are still read under their old names, and what was made with them keeps its keys.

A dataclass field says what it was called: `field(default=..., metadata={"was": "old_name"})`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pairstill.runtime.progress import console

_WARNED: set[str] = set()


def old_names(kind: type) -> dict[str, str]:
    """The new name of each field of a dataclass that has an old one, by the old one."""
    return {field.metadata["was"]: field.name for field in dataclasses.fields(kind) if "was" in field.metadata}


def under_new_names(kind: type, values: Mapping[str, Any], where: str | None = None) -> dict[str, Any]:
    """Values by the names that a dataclass' fields have now. With `where`, an old name is warned of, once."""
    old = old_names(kind)
    for name in old.keys() & values.keys() if where is not None else ():
        warn_of_old_name(f"{where}{name}", old[name])
    return {old.get(name, name): value for name, value in values.items()}


def under_old_names(settings: Any) -> dict[str, Any]:
    """All of a dataclass' values by the names that its fields had first: digests made of them never change."""
    return {
        field.metadata.get("was", field.name): getattr(settings, field.name) for field in dataclasses.fields(settings)
    }


def warn_of_old_name(old: str, new: str) -> None:
    """Say what a setting is called now, once in a process."""
    if old not in _WARNED:
        _WARNED.add(old)
        line = f"[yellow]note:[/] the setting {old} is now called {new}; its old name still works"
        console.print(line, soft_wrap=True)
