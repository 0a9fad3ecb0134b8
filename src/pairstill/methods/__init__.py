"""Methods: one file each, one contract. To add one, write its file and name it here."""

from __future__ import annotations

from pairstill.errors import unknown
from pairstill.methods import dm, edge, forgetting, herding, kcenter, kmeans, lors, mdm, mtt, random, rehearsal, tesla
from pairstill.methods.contract import Context, Method

METHODS: dict[str, Method] = {
    "random": random.METHOD,
    "kmeans": kmeans.METHOD,
    "herding": herding.METHOD,
    "k-center": kcenter.METHOD,
    "forgetting": forgetting.METHOD,
    "dm": dm.METHOD,
    "mtt-vl": mtt.METHOD,
    "tesla": tesla.METHOD,
    "lors": lors.METHOD,
    "edge": edge.METHOD,
    "mdm": mdm.METHOD,
    "rehearsal": rehearsal.METHOD,
}


def method_named(name: str) -> Method:
    """The method of that name."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


__all__ = ["METHODS", "Context", "Method", "method_named"]
