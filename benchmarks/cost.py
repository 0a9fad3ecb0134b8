"""From a folder of images to a distilled set, from nothing, as a user's two commands: how long each takes.

    python -m benchmarks.cost [--size 112] [--pairs 100]

Nothing is reused. The bare network's time on as many images, forward and backward, is taken before and after, as a
reference for other machines. Writes results/cost.csv; run it alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from benchmarks.step import RESULTS, write
from pairstill.towers.image_encoder import load_image_encoder

DATA = Path(os.environ.get("PAIRSTILL_DATA", "../shared/data"))


def bare_pass(size: int, pictures: int) -> float:
    """Median seconds of the bare network, forward and back to the pixels."""
    encoder, seconds = load_image_encoder("efficientnet_lite0").eval(), []
    pixels = torch.rand(pictures, 3, size, size).contiguous(memory_format=torch.channels_last).requires_grad_()
    for _ in range(7):
        begin = time.perf_counter()
        encoder(pixels).sum().backward()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[2:])


def timed(*command: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "pairstill.cli", *command], check=True)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA / "flickr8k", help="folder with dataset_flickr8k.json")
    parser.add_argument("--work", type=Path, default=Path("runs/cost"), help="emptied first")
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--pairs", type=int, default=100)
    arguments = parser.parse_args()
    shutil.rmtree(arguments.work, ignore_errors=True)
    data, made = str(arguments.work / "data"), str(arguments.work / "set")
    before = bare_pass(arguments.size, arguments.pairs)
    prepare = timed("prepare", str(arguments.data), "--out", data, f"--towers.image-size={arguments.size}")
    distil = timed("distill", data, "--out", made, f"--pairs={arguments.pairs}")
    bare = (before + bare_pass(arguments.size, arguments.pairs)) / 2
    row = {
        "method": "rehearsal",
        "size": arguments.size,
        "pairs": arguments.pairs,
        "prepare_seconds": round(prepare),
        "distil_seconds": round(distil),
        "minutes": round((prepare + distil) / 60, 1),
        "bare_pass_seconds": round(bare, 2),
        "whole_in_bare_passes": round((prepare + distil) / bare),
    }
    print(row)
    write(RESULTS / "cost.csv", [row])


if __name__ == "__main__":
    main()
