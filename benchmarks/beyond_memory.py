"""What more pairs cost: seconds and memory of every stage that passes over all of them, at several sizes.

    python -m benchmarks.beyond_memory [--sizes 10000 100000 200000 1000000] [--work runs/beyond-memory]

Features are made here, at the widths of the default towers (6.7 GB on disk for a million pairs, removed at the end).
Each size has a process of its own. Memory is anonymous memory (RssAnon, sampled every 5 ms): what the system can't take
back, as it can the pages of mapped files. Linux only. Writes results/beyond_memory.csv.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.step import RESULTS, write
from pairstill.data.captions import StoredCaptions
from pairstill.data.pair_sampling import LinksByPicture
from pairstill.features.feature_cache import cached_matrix
from pairstill.features.subset_selection import PairFeatures, cells_of, choose_pairs, mean_texts_of
from pairstill.runtime.row_matrix import StoredMatrix
from pairstill.runtime.seeds import generator
from pairstill.sets.distilled_set import nearest_captions
from pairstill.training.training_loop import batches

WIDTHS = {"images": 1280, "texts": 384}
CENTRES = 200
CHOSEN, OUTER, BATCH = 100, 2048, 128
DRAWS = 9


def anonymous_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


@contextlib.contextmanager
def stage(pairs: int, name: str, times: int = 1) -> Iterator[None]:
    """Print the seconds of what is inside (of one of `times`), of clock and processor, and its peak memory."""
    peak, stop = [anonymous_mib()], threading.Event()

    def look() -> None:
        while not stop.wait(0.005):
            peak[0] = max(peak[0], anonymous_mib())

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    begin, busy = time.perf_counter(), time.process_time()
    yield
    seconds, busy = time.perf_counter() - begin, time.process_time() - busy
    stop.set()
    watcher.join()
    peak[0] = max(peak[0], anonymous_mib())
    times_of = {"seconds": round(seconds / times, 4), "cpu_seconds": round(busy / times, 4)}
    print(json.dumps({"pairs": pairs, "stage": name, **times_of, "peak_mib": round(peak[0])}), flush=True)


def made_rows(pairs: int, name: str, start: int) -> Iterator[NDArray[np.float32]]:
    """Noise around some centres, a block at a time."""
    random = np.random.default_rng(start)
    centres = np.random.default_rng(len(name)).standard_normal((CENTRES, WIDTHS[name]), np.float32)
    for begin in range(start, pairs, 4096):
        count = min(4096, pairs - begin)
        noise = random.standard_normal((count, WIDTHS[name]), np.float32)
        yield centres[random.integers(CENTRES, size=count)] + noise


def matrix(work: Path, name: str, pairs: int) -> StoredMatrix:
    """One of the two matrices of features, made if it is not there, verified if it is."""
    shape = (pairs, WIDTHS[name])
    return StoredMatrix(
        cached_matrix(work / f"{name}.npy", shape, "float32", lambda start: made_rows(pairs, name, start), name)
    )


def measure(pairs: int, work: Path) -> None:
    with stage(pairs, "imports"):
        choose_pairs("kmeans", PairFeatures(torch.eye(3), torch.eye(3), torch.zeros(3, 2, dtype=torch.int64)), 2, 0)
    with stage(pairs, "write features"):
        for name in WIDTHS:
            matrix(work, name, pairs)
        with (work / "captions.jsonl").open("w") as file:
            file.writelines(f'"image {n} of something that takes some sixty letters to say"\n' for n in range(pairs))
    with stage(pairs, "verify and open"):
        images, texts = (matrix(work, name, pairs) for name in WIDTHS)
        captions = StoredCaptions(work / "captions.jsonl")
        features = PairFeatures(images, texts, torch.arange(pairs).unsqueeze(1).repeat(1, 2))
    with stage(pairs, f"k-means start, {CHOSEN} pairs"):
        rows = choose_pairs("kmeans", features, CHOSEN, 0)
    with stage(pairs, "cells and mean texts"):
        means = mean_texts_of(features, cells_of(features, rows))
    with stage(pairs, "nearest captions"):
        nearest_captions(means, texts, captions)
    with stage(pairs, "group links"):
        links = LinksByPicture(features.links)
    with stage(pairs, f"outer loss on {OUTER}, a draw", DRAWS):
        for draw in range(DRAWS):
            pictures, words = links.draw(OUTER, generator(0, draw)).unbind(1)
            images[pictures], texts[words]
    with stage(pairs, f"batches of {BATCH}, an epoch"):
        for part in batches(pairs, BATCH, generator(0)):
            images[features.links[part, 0]], texts[features.links[part, 1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 200_000, 1_000_000])
    parser.add_argument("--work", type=Path, default=Path("runs/beyond-memory"))
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        measure(arguments.one, arguments.work)
        return
    rows = []
    for size in arguments.sizes:
        folder = arguments.work / str(size)
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "benchmarks.beyond_memory", "--one", str(size), "--work", str(folder)]
        try:
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                for line in process.stdout or ():
                    rows.append(json.loads(line))
                    print(rows[-1], flush=True)
        finally:
            shutil.rmtree(folder)
        if process.returncode:
            raise SystemExit(process.returncode)
    write(RESULTS / "beyond_memory.csv", rows)


if __name__ == "__main__":
    main()
