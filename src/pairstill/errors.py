"""The one error that a person sees: what was wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pairstill.redaction import without_secrets


class PairstillError(Exception):
    """Bad input or a bad state that the person can mend. The command line prints it and exits with 2.

    What it says may be kept in files, so it names no password and no token.
    """

    def __init__(self, message: str) -> None:
        super().__init__(without_secrets(message))


def unknown(kind: str, name: str, known: Iterable[str]) -> PairstillError:
    """An error for a name that is not in a list, with the nearest one that is."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    return PairstillError(f"unknown {kind} '{name}'. {hint}Known: {', '.join(names)}.")
