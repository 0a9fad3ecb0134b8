"""Methods: one file each, in families, behind one contract (`distillation.contract`).

In: the training pairs and a `Context`. Out: a `DistilledSet`. Neighbours use `METHODS` and `method_named`.

- `selection`: real pairs are chosen, nothing is optimised.
- `distributions`: features of real and synthetic pairs are matched under teachers.
- `trajectories`: a student on the synthetic pairs follows an expert's training.
- `through_training`: the gradient of real retrieval goes back through a student's whole training.
- `generation`: images are sampled from a generative model.

What several methods share stands in `distillation`. To add a method, write its file and add its line to `FILES`.
"""

from __future__ import annotations

from importlib import import_module

from pairstill.distillation.contract import Method
from pairstill.errors import unknown

FILES = (
    "selection.random_pairs",
    "selection.kmeans",
    "selection.herding",
    "selection.k_center",
    "selection.forgetting",
    "distributions.dm",
    "distributions.mdm",
    "trajectories.mtt_vl",
    "trajectories.tesla",
    "trajectories.lors",
    "through_training.rehearsal",
    "generation.edge",
)
"""A line for each method: its module."""

_ALL: list[Method] = [import_module(f"{__name__}.{file}").METHOD for file in FILES]
METHODS = {method.name: method for method in _ALL}
"""All methods by name."""


def method_named(name: str) -> Method:
    """The method of that name."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
