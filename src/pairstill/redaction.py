"""Passwords and tokens, taken out of texts before they are shown or kept."""

from __future__ import annotations

import re

HIDDEN = "***"
SECRETS = (
    re.compile(r"(?<=:/)(?P<before>/?)[^\s/@'\"]+:[^\s/@'\"]+(?=@)"),  # https://user:password@host
    re.compile(r"(?<=[?&])(?P<before>[\w-]*(?:token|key|secret|password|signature|credential)[\w-]*=)[^&\s'\"]+", re.I),
    re.compile(r"(?P<before>\bhf_)[A-Za-z0-9]{16,}"),
)


def without_secrets(text: str) -> str:
    """The same text with what looks like a password or a token replaced."""
    for secret in SECRETS:
        text = secret.sub(rf"\g<before>{HIDDEN}", text)
    return text


def holds_secret(text: str) -> bool:
    """Whether there is anything to hide in a text."""
    return without_secrets(text) != text
