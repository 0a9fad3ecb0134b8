"""The demo from nothing: its table with the time of each method, and the whole time.

    python -m benchmarks.demo

Writes results/demo.csv. Runs in a new folder, so that nothing is reused.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.flickr8k import RESULTS
from pairstill.cli.demo import run_demo
from pairstill.studies.tables import write_results


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        rows = run_demo(Path(folder) / "demo")
        print(f"{time.monotonic() - begin:.0f} s in all")
    write_results(RESULTS / "demo.csv", rows)


if __name__ == "__main__":
    main()
