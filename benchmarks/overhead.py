"""What a run pays for being able to go on: the share of its time that checkpoints and events take.

    python -m benchmarks.overhead --data runs/flickr8k/data [--size 112] [--pairs 100]

Each method runs for some iterations with the functions that write timed. Writes results/overhead.csv.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.step import RESULTS, write
from pairstill import api
from pairstill.experts.bank import Bank
from pairstill.features.prepared_folder import PreparedDataset, open_prepared
from pairstill.methods.distributions import mdm
from pairstill.methods.through_training import rehearsal
from pairstill.methods.trajectories import lors
from pairstill.runtime.run_folder import Run
from pairstill.training.training_recipe import EXPERT_RECIPE

ITERATIONS = {
    "mdm": mdm.Settings(iterations=100, check_every=100),
    "lors": lors.Settings(iterations=100, check_every=100),
    "rehearsal": rehearsal.Settings(iterations=60, check_every=60),
}


class Stopwatch:
    """Counts the calls of some functions, and their seconds."""

    def __init__(self) -> None:
        self.calls, self.seconds = 0, 0.0

    def around(self, owner: type, *names: str) -> None:
        """Time these functions of a class from now on."""
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, do: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return do(*args, **kwargs)
            finally:
                self.calls, self.seconds = self.calls + 1, self.seconds + time.perf_counter() - begin

        return timed


def row_of(what: str, watch: Stopwatch, run: Callable[[], Any]) -> dict[str, object]:
    watch.calls, watch.seconds, begin = 0, 0.0, time.perf_counter()
    run()
    whole = time.perf_counter() - begin
    row: dict[str, object] = {
        "what": what,
        "writes": watch.calls,
        "per_cent": round(100 * watch.seconds / whole, 2),
        "seconds": round(whole, 1),
    }
    print(row, flush=True)
    return row


def measure(data: PreparedDataset, pairs: int) -> list[dict[str, object]]:
    watch = Stopwatch()
    watch.around(Run, "event", "save_checkpoint")
    watch.around(Bank, "keep_unfinished", "complete")
    data.encoded().split("train")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = replace(EXPERT_RECIPE, epochs=5)
        rows = [row_of("experts", watch, lambda: api.train_experts(data, folder / "bank", 2, recipe))]
        for method, settings in ITERATIONS.items():
            bank = None if method == "rehearsal" else folder / "bank"

            def run(method: str = method, bank: Path | None = bank, settings: Any = settings) -> None:
                api.distill(data, folder / method, method, pairs, bank, settings=settings)

            rows.append(row_of(method, watch, run))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("runs/flickr8k/data"), help="a prepared folder")
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--pairs", type=int, default=100)
    arguments = parser.parse_args()
    data = open_prepared(arguments.data)
    data = replace(data, towers=replace(data.towers, image_size=arguments.size))
    write(RESULTS / "overhead.csv", measure(data, arguments.pairs))


if __name__ == "__main__":
    main()
