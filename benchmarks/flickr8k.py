"""Retrieval on Flickr8k: random, k-means, MDM and the full set, at several budgets, as one CSV.

    python -m benchmarks.flickr8k --size 112 --pairs 100 200 500

Towers `heads`, protocol `clean`: the iteration is chosen on the validation split and the test split is read once,
for the table. Everything is kept in --work and reused, so a killed run goes on where it was.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from pairstill import api
from pairstill.distillation.contract import Method
from pairstill.errors import PairstillError
from pairstill.evaluation.scoring import Result
from pairstill.methods.distributions import mdm
from pairstill.methods.selection import kmeans, random_pairs
from pairstill.runtime.run_folder import read_events
from pairstill.studies.tables import results_table, write_results
from pairstill.towers.two_tower import Towers

RESULTS = Path(__file__).parent / "results"
DATA = Path(os.environ.get("PAIRSTILL_DATA", "../shared/data"))
METHODS: dict[str, Method] = {"random": random_pairs.METHOD, "kmeans": kmeans.METHOD, "mdm": mdm.METHOD}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA / "flickr8k", help="folder with dataset_flickr8k.json")
    parser.add_argument("--work", type=Path, default=Path("runs/flickr8k"))
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--pairs", type=int, nargs="+", default=[100, 200, 500])
    parser.add_argument("--experts", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--check-every", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    if not arguments.data.exists():
        raise SystemExit(f"Flickr8k is not at {arguments.data}: give --data, or set PAIRSTILL_DATA to its parent.")
    try:
        rows = run(arguments)
    except PairstillError as error:
        raise SystemExit(f"error: {error}") from error
    Console().print(results_table(rows, f"Flickr8k, {arguments.size} px, heads, protocol clean, test split"))


def run(arguments: argparse.Namespace) -> list[Result]:
    """All methods at all budgets; the CSV is written after every row."""
    work = arguments.work / str(arguments.size)
    data = api.prepare(str(arguments.data), arguments.work / "data", Towers(image_size=arguments.size), workers=2)
    bank = api.train_experts(data, work / "bank", arguments.experts)
    rows: list[Result] = []
    for pairs in arguments.pairs:
        for name in METHODS:
            made = api.distill(
                data, work / f"{name}-{pairs}", name, pairs, bank, settings=settings(name, arguments), resume=True
            )
            row = api.evaluate(made, data, seeds=arguments.seeds)
            distilling = read_events(work / f"{name}-{pairs}" / "run")[-1]["seconds"]
            rows.append(replace(row, seconds=distilling + row.seconds))
            write_results(RESULTS / f"flickr8k_{arguments.size}.csv", rows)
    rows.append(api.evaluate("full", data, seeds=arguments.seeds))
    write_results(RESULTS / f"flickr8k_{arguments.size}.csv", rows)
    return rows


def settings(name: str, arguments: argparse.Namespace) -> object:
    """A method's defaults, but for the length of MDM's run."""
    if name != "mdm":
        return METHODS[name].settings()
    return mdm.Settings(iterations=arguments.iterations, check_every=arguments.check_every)


if __name__ == "__main__":
    main()
