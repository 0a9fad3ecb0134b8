"""Checks of methods' settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pairstill.errors import PairstillError


def check_settings(settings: object, at_least: Mapping[str, int], above_zero: Sequence[str] = ()) -> None:
    """Refuse values that are too small, by name; a momentum must be at least 0 and below 1."""
    for name, low in at_least.items():
        if getattr(settings, name) < low:
            raise PairstillError(f"settings.{name} must be at least {low}, not {getattr(settings, name)}.")
    for name in above_zero:
        if not getattr(settings, name) > 0:
            raise PairstillError(f"settings.{name} must be above 0, not {getattr(settings, name)}.")
    for name in ("momentum", "student_momentum"):
        if not 0 <= getattr(settings, name, 0.0) < 1:
            raise PairstillError(f"settings.{name} must be at least 0 and below 1, not {getattr(settings, name)}.")
