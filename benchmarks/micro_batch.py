"""Memory and time of a pass of 500 images of 224 px through the network and back, for several micro-batches.

    python -m benchmarks.micro_batch [--pairs 500] [--size 224]

The pass is nearly all that an iteration of MDM in towers `heads` costs. Memory is the most that tensors hold, from
every allocation that torch records; time is over that of the default, in the same run. Writes results/micro_batch.csv.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import torch

from benchmarks.step import RESULTS, grown_by, held_by_tensors, write
from pairstill.runtime.memory import peak_mib
from pairstill.towers.folding import fold
from pairstill.towers.image_encoder import load_image_encoder
from pairstill.towers.passes import Passes

SIZES = (0, 50, 25, 10, 5, 1)
"""Images at a time; 0 is the default, as many as take about 5 GiB."""


def measure(pairs: int, size: int, micro_batch: int) -> None:
    """Print the figures of one micro-batch; in a process of its own, for its resident memory."""
    network, passes = fold(load_image_encoder("efficientnet_lite0"), size), Passes(micro_batch or None)
    pictures = torch.rand(pairs, 3, size, size).contiguous(memory_format=torch.channels_last).requires_grad_()

    def step() -> None:
        passes(network, pictures).square().sum().backward()

    begin = time.perf_counter()
    step()
    seconds = time.perf_counter() - begin
    resident = peak_mib()
    print(json.dumps({"mib": held_by_tensors() + grown_by(step), "resident": resident, "seconds": seconds}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=500)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--only", type=int, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only is not None:
        measure(arguments.pairs, arguments.size, arguments.only)
        return
    rows, first = list[dict[str, object]](), 0.0
    for micro_batch in SIZES:
        command = [sys.executable, "-m", "benchmarks.micro_batch", f"--only={micro_batch}"]
        command += [f"--pairs={arguments.pairs}", f"--size={arguments.size}"]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        first = first or found["seconds"]
        row: dict[str, object] = {
            "micro_batch": micro_batch or "default",
            "tensors_mib": round(found["mib"]),
            "resident_mib": round(found["resident"]),
            "time_over_default": round(found["seconds"] / first, 2),
        }
        rows.append(row)
        print(row, flush=True)
    write(RESULTS / "micro_batch.csv", rows)


if __name__ == "__main__":
    main()
