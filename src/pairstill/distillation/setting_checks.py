"""Checks of methods' settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pairstill.errors import PairstillError


def check_settings(settings: object, at_least: Mapping[str, float], above_zero: Sequence[str] = ()) -> None:
    """Refuse values that are too small, by name; a momentum must be at least 0 and below 1, and None is no value."""
    for name, low in at_least.items():
        if (value := getattr(settings, name)) is not None and not value >= low:
            raise PairstillError(f"settings.{name} must be at least {low}, not {value}.")
    for name in above_zero:
        if (value := getattr(settings, name)) is not None and not value > 0:
            raise PairstillError(f"settings.{name} must be above 0, not {value}.")
    for name in ("momentum", "student_momentum"):
        if (value := getattr(settings, name, None)) is not None and not 0 <= value < 1:
            raise PairstillError(f"settings.{name} must be at least 0 and below 1, not {value}.")
