"""The one error that a person sees: what was wrong, where, and what to do. It names no password and no token."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

HIDDEN = "***"
SECRETS = (
    re.compile(r"(?<=:/)(?P<before>/?)[^\s/@'\"]+:[^\s/@'\"]+(?=@)"),  # https://user:password@host
    re.compile(r"(?<=[?&])(?P<before>[\w-]*(?:token|key|secret|password|signature|credential)[\w-]*=)[^&\s'\"]+", re.I),
    re.compile(r"(?P<before>\bhf_)[A-Za-z0-9]{16,}"),
)


class PairstillError(Exception):
    """Bad input or a bad state that the person can mend. The command line prints it and exits with 2.

    The message may be kept in files, so secrets are taken out of it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(without_secrets(message))


def unknown(kind: str, name: str, known: Iterable[str]) -> PairstillError:
    """An error for a name that is not in a list, with the nearest one that is."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    return PairstillError(f"unknown {kind} '{name}'. {hint}Known: {', '.join(names)}.")


def without_secrets(text: str) -> str:
    """The same text with what looks like a password or a token replaced."""
    for secret in SECRETS:
        text = secret.sub(rf"\g<before>{HIDDEN}", text)
    return text


def holds_secret(text: str) -> bool:
    """Whether there is anything to hide in a text."""
    return without_secrets(text) != text
