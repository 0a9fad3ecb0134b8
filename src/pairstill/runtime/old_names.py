"""Settings that were renamed or added: old names are still read, and what was made before keeps its keys.

A dataclass field says what it was called, `field(default=..., metadata={"was": "old_name"})`, or that it came after
sets had been made without it, `field(default=..., metadata={"added": True})`.
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
    """All of a dataclass' values by the names that its fields had first: digests made of them never change.

    A field that was added later counts once it differs from its default.
    """
    return {
        field.metadata.get("was", field.name): getattr(settings, field.name)
        for field in dataclasses.fields(settings)
        if not ("added" in field.metadata and getattr(settings, field.name) == field.default)
    }


def with_added(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a dataclass' fields, with the defaults of those that were added after they were written down."""
    added = {field.name: field.default for field in dataclasses.fields(kind) if "added" in field.metadata}
    return {**added, **values}


def warn_of_old_name(old: str, new: str) -> None:
    """Say what a setting is called now, once in a process."""
    if old not in _WARNED:
        _WARNED.add(old)
        line = f"[yellow]note:[/] the setting {old} is now called {new}; its old name still works"
        console.print(line, soft_wrap=True)
