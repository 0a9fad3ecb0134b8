"""Methods: one file each, one contract. To add one, write its file and name it here."""

from __future__ import annotations

from pairstill.errors import unknown
from pairstill.methods import kmeans, mdm, random
from pairstill.methods.contract import Context, Method

METHODS: dict[str, Method] = {
    "random": random.METHOD,
    "kmeans": kmeans.METHOD,
    "mdm": mdm.METHOD,
}


def method_named(name: str) -> Method:
    """The method of that name."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


__all__ = ["METHODS", "Context", "Method", "method_named"]
