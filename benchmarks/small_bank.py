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
from pairstill.bank import Bank, parameters_of
from pairstill.distillation import distill
from pairstill.encoded import Encoded
from pairstill.evaluation import evaluate
from pairstill.methods import lors, mdm
from pairstill.prepared import open_prepared
from pairstill.protocols import protocol_named
from pairstill.seeds import derive
from pairstill.teachers import merged
from pairstill.training import EXPERT_RECIPE, train

METHODS: dict[str, Any] = {
    "mdm": mdm.Settings(iterations=60, check_every=20),
    "lors": lors.Settings(iterations=150, check_every=50),
}


def banks(encoded: Encoded, work: Path, experts: int) -> dict[str, Bank]:
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
        for method, settings in METHODS.items():
            folder = arguments.work / f"{method}-{kind}"
            made = distill(encoded, folder, method, 100, clean, bank, settings, resume=True)
            found = evaluate(encoded, made, clean, arguments.seeds, "val")
            row[f"{method}_val"], row[f"{method}_std"] = round(found.mean, 2), round(found.mean_std, 2)
        rows.append(row)
        print(row, flush=True)
    write(RESULTS / "small_bank.csv", rows)


if __name__ == "__main__":
    main()
