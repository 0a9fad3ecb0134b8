"""What packing costs: the same experts kept as they are and packed, and what is distilled from each.

    python -m benchmarks.small_bank --data runs/flickr8k/data [--size 112] [--experts 6]

`--data` is a prepared folder. Sets are scored on the validation split, which no setting was chosen by here. Merge times
are medians over draws from the first experts of the bank, so that banks of several sizes are compared in one run.
Writes results/small_bank.csv.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.step import RESULTS, write
from pairstill.distillation.contract import Method
from pairstill.distillation.runner import distill
from pairstill.evaluation.scoring import evaluate
from pairstill.experts.bank import Bank, parameters_of
from pairstill.experts.teacher_weights import merged
from pairstill.features.encoded_dataset import EncodedDataset
from pairstill.features.prepared_folder import open_prepared
from pairstill.methods.distributions import mdm
from pairstill.methods.trajectories import lors
from pairstill.runtime.seeds import derive
from pairstill.training.protocols import protocol_named
from pairstill.training.training_loop import train
from pairstill.training.training_recipe import EXPERT_RECIPE

METHODS: list[tuple[Method, Any]] = [
    (mdm.METHOD, mdm.Settings(iterations=60, check_every=20)),
    (lors.METHOD, lors.Settings(iterations=150, check_every=50)),
]


def banks(encoded: EncodedDataset, work: Path, experts: int) -> dict[str, Bank]:
    """The same experts twice: as 32-bit parameters, and packed."""
    kinds = {"float32": False, "packed": True}
    if all((work / kind / "bank.json").exists() for kind in kinds):
        return {kind: Bank.open(work / kind) for kind in kinds}
    start, pairs = derive(0, "anchor"), encoded.split("train").pairs
    anchor = parameters_of(encoded.new_model(start))
    made = {
        kind: Bank.create(work / kind, anchor, encoded.identity(), encoded.dataset.fingerprint, {}, packed)
        for kind, packed in kinds.items()
    }
    for expert in range(experts):
        model, epochs = encoded.new_model(start), list[dict[str, torch.Tensor]]()
        train(model, pairs, EXPERT_RECIPE, derive(0, "expert", expert), lambda _: epochs.append(parameters_of(model)))  # noqa: B023
        for bank in made.values():
            bank.add(expert, epochs)
        print(f"expert {expert + 1} of {experts}", flush=True)
    return made


def bytes_of(bank: Bank) -> int:
    return sum((bank.folder / row.file).stat().st_size for row in bank.checkpoints)


def merge_ms(bank: Bank, experts: int, draws: int = 30) -> float:
    part, seconds = bank.first(experts), []
    for draw in range(draws):
        random = torch.Generator().manual_seed(draw)
        begin = time.perf_counter()
        merged(part, random, 2, 0.5)
        seconds.append(time.perf_counter() - begin)
    return 1000 * statistics.median(seconds[draws // 3 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("runs/flickr8k/data"))
    parser.add_argument("--work", type=Path, default=Path("runs/small-bank"))
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--experts", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    data = open_prepared(arguments.data)
    encoded = data.encoded(replace(data.towers, image_size=arguments.size))
    clean, rows = protocol_named("clean"), []
    for kind, bank in banks(encoded, arguments.work, arguments.experts).items():
        row: dict[str, object] = {
            "bank": kind,
            "checkpoints": len(bank.checkpoints),
            "mib": round(bytes_of(bank) / 2**20, 1),
        }
        for experts in (2, arguments.experts // 2, arguments.experts):
            row[f"merge_ms_of_{experts}_experts"] = round(merge_ms(bank, experts), 1)
        for method, settings in METHODS:
            folder = arguments.work / f"{method.name}-{kind}"
            made = distill(encoded, folder, method, 100, clean, bank, settings, resume=True)
            found = evaluate(encoded, made, clean, arguments.seeds, "val")
            row[f"{method.name}_val"], row[f"{method.name}_std"] = round(found.mean, 2), round(found.mean_std, 2)
        rows.append(row)
        print(row, flush=True)
    write(RESULTS / "small_bank.csv", rows)


if __name__ == "__main__":
    main()
