"""One run with towers `full` on Flickr8k, at a size that fits two cores: random pairs, MDM and rehearsal.

    python -m benchmarks.full_towers

The image backbone and the text projector are trained, as in the paper, in experts, teachers and students. An expert's
epoch takes each picture once, with one of its captions. Students train with a step size of 0.01: with the published 0.1
and momentum 0.9, made for networks without batch norms, EfficientNet-Lite0 ends at chance (docs/log.md). The
iteration is chosen on the validation split; the test split is read once. Writes results/full_towers.csv, with the
seconds of each stage in results/full_towers_seconds.csv.
"""

from __future__ import annotations

import argparse
import csv
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.flickr8k import DATA, RESULTS
from pairstill import api
from pairstill.distillation import distill
from pairstill.evaluation import evaluate
from pairstill.methods import mdm, rehearsal
from pairstill.protocols import protocol_named
from pairstill.tables import results_table, write_rows
from pairstill.towers import Towers
from pairstill.training import STUDENT_RECIPE, Recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA / "flickr8k", help="folder with dataset_flickr8k.json")
    parser.add_argument("--work", type=Path, default=Path("runs/flickr8k-full"))
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--experts", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--student-lr", type=float, default=0.01)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    if not arguments.data.exists():
        raise SystemExit(f"Flickr8k is not at {arguments.data}: give --data, or set PAIRSTILL_DATA to its parent.")
    seconds: dict[str, float] = {}
    begin = time.monotonic()
    towers = Towers(image_size=arguments.size, train="full")
    data = api.prepare(str(arguments.data), arguments.work / "data", towers, workers=2)
    seconds["prepare"], begin = time.monotonic() - begin, time.monotonic()
    bank = api.train_experts(
        data,
        arguments.work / "bank",
        arguments.experts,
        Recipe(epochs=arguments.epochs, one_caption=True),
    )
    seconds["experts"], begin = time.monotonic() - begin, time.monotonic()
    protocol = protocol_named("clean")
    student = replace(STUDENT_RECIPE, lr=arguments.student_lr)
    encoded, rows = data.encoded(), []
    length = arguments.iterations
    settings_by_method = {
        "random": None,
        "mdm": mdm.Settings(iterations=length, check_every=max(1, length // 2)),
        "rehearsal": rehearsal.Settings(iterations=4 * length, check_every=4 * length),
    }
    for method, settings in settings_by_method.items():
        out = arguments.work / f"{method}-{arguments.pairs}"
        made = distill(encoded, out, method, arguments.pairs, protocol, bank, settings, resume=True, student=student)
        seconds[f"distill {method}"], begin = time.monotonic() - begin, time.monotonic()
        rows.append(evaluate(encoded, made, protocol, arguments.seeds, recipe=student))
        seconds[f"students {method}"], begin = time.monotonic() - begin, time.monotonic()
        write_rows(RESULTS / "full_towers.csv", rows)
    with (RESULTS / "full_towers_seconds.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [("stage", "seconds"), *((stage, round(took, 1)) for stage, took in seconds.items())]
        )
    Console().print(results_table(rows, f"Flickr8k, {towers.describe()}, protocol clean, test split"))


if __name__ == "__main__":
    main()
