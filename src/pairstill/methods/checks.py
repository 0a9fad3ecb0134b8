"""Checks of methods' settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pairstill.errors import PairstillError


def check_settings(settings: object, at_least: Mapping[str, int], above_zero: Sequence[str] = ()) -> None:
    """Refuse values that are too small, by name; a momentum must be at least 0 and below 1, and None is no value."""
    given = {name: value for name, value in vars(settings).items() if value is not None}
    for name, low in at_least.items():
        if given.get(name, low) < low:
            raise PairstillError(f"settings.{name} must be at least {low}, not {given[name]}.")
    for name in above_zero:
        if not given.get(name, 1) > 0:
            raise PairstillError(f"settings.{name} must be above 0, not {given[name]}.")
    for name in ("momentum", "student_momentum"):
        if not 0 <= given.get(name, 0.0) < 1:
            raise PairstillError(f"settings.{name} must be at least 0 and below 1, not {given[name]}.")
