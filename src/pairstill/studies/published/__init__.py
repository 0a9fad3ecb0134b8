"""The paper's printed results as data, one CSV per table, to set beside one's own.

Cells hold what the paper prints, slips included; `notes` says where a row contradicts itself or another table.
Methods and datasets have this package's names: "Ours" is `mdm`, "Full Dataset" is `full`, with pairs `all`.

- `main`: retrieval, from the supplement's full table; deviations are over five students.
- `cross_architecture`: mean recall of towers on pairs distilled with NFNet and BERT; `mean` leaves the source out.
- `compute`: the time of a distillation. `total_cost`: experts included, beside EDGE.
- `ablations`: on Flickr8k, 100 pairs. Recipe `ablation-GROUP-CHOICE` makes a row; choice `mdm` is the method itself.

The paper shows feature sets and the sweeps of λ, α and the pool's size only as figures, so they are not here.
"""

from __future__ import annotations

import csv
from importlib.resources import files

from pairstill.errors import unknown


def published(table: str) -> list[dict[str, str]]:
    """The rows of a table as printed; an empty cell is a figure that the paper does not give."""
    known = {file.name.removesuffix(".csv"): file for file in files(__name__).iterdir() if file.name.endswith(".csv")}
    if table not in known:
        raise unknown("published table", table, known)
    return list(csv.DictReader(known[table].read_text(encoding="utf-8").splitlines()))


def main_rows(dataset: str, pairs: int) -> dict[str, float]:
    """Mean recall of each method of the main table, with the full set's as `full`; empty for a dataset not in it."""
    return {
        row["method"]: float(row["mean"])
        for row in published("main")
        if row["dataset"] == dataset and row["pairs"] in (str(pairs), "all")
    }


def ablation_mean(name: str) -> float:
    """Mean recall of a row of the ablations, named `group/choice`."""
    rows = {f"{row['group']}/{row['choice']}": float(row["mean"]) for row in published("ablations")}
    if name not in rows:
        raise unknown("published ablation", name, rows)
    return rows[name]


__all__ = ["ablation_mean", "main_rows", "published"]
