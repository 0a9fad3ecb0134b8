"""How much faster two processes train experts than one, with one thread each.

    python -m benchmarks.launching --data runs/flickr8k/data [--experts 4]

A core that is divided into two hyperthreads can't do it 1.7 times faster, so the machine's own gain is measured beside:
two bare loops of matrix products against one. Writes results/launching.csv; run it alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.step import RESULTS, write
from pairstill import api
from pairstill.features.prepared_folder import PreparedDataset, open_prepared
from pairstill.runtime.launchers import Processes
from pairstill.training.training_recipe import EXPERT_RECIPE

PRODUCTS = 12_000


def multiply(products: int) -> None:
    torch.set_num_threads(1)
    left, right = torch.rand(128, 1280), torch.rand(1280, 512)
    for _ in range(products):
        left @ right


def bare_gain() -> float:
    """How much more work two processes do in the same time than one."""
    spawn, seconds = multiprocessing.get_context("spawn"), list[float]()
    for count in (1, 2):
        processes = [spawn.Process(target=multiply, args=(PRODUCTS // count,)) for _ in range(count)]
        begin = time.perf_counter()
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        seconds.append(time.perf_counter() - begin)
    return seconds[0] / seconds[1]


def experts_gain(data: PreparedDataset, experts: int, epochs: int) -> float:
    recipe, seconds = replace(EXPERT_RECIPE, epochs=epochs), list[float]()
    for jobs in (1, 2):
        torch.set_num_threads(jobs)  # shared by the processes: one each
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            api.train_experts(data, Path(folder) / "bank", experts, recipe, launcher=Processes(jobs))
            seconds.append(time.perf_counter() - begin)
        print(f"{jobs} at a time: {seconds[-1]:.0f} s", flush=True)
    return seconds[0] / seconds[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("runs/flickr8k/data"), help="a prepared folder")
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--experts", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()
    data = open_prepared(arguments.data)
    data = replace(data, towers=replace(data.towers, image_size=arguments.size))
    row: dict[str, object] = {
        "experts": arguments.experts,
        "two_processes_over_one": round(experts_gain(data, arguments.experts, arguments.epochs), 2),
        "the_machine_itself": round(bare_gain(), 2),
    }
    print(row)
    write(RESULTS / "launching.csv", [row])


if __name__ == "__main__":
    main()
