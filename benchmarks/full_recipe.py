"""The search for a recipe in regime `full`: students of real pairs and models of all pairs, on the validation split.

    pairstill prepare FLICKR8K --out runs/full112 --towers.train full --towers.image-size 112
    python -m benchmarks.full_recipe --data runs/full112 [--only all]

A trial is a line of `TRIALS`. Each finished one is appended to results/full_recipe.csv at once, and skipped when the
script runs again. What the product has no option for (other optimisers, norms that train, decay by depth) is in here.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from benchmarks.step import RESULTS
from pairstill.data.augmentation import dsa, expert_augmentation
from pairstill.features.encoded_dataset import EncodedDataset, EncodedSplit
from pairstill.features.prepared_folder import open_prepared
from pairstill.features.subset_selection import choose_pairs
from pairstill.runtime.seeds import derive, generator, global_seed
from pairstill.towers.two_tower import TwoTower
from pairstill.training.losses import info_nce
from pairstill.training.student_training import model_recall
from pairstill.training.training_loop import batches, one_link_per_image

CSV = RESULTS / "full_recipe.csv"
PAIRS = 100


@dataclass(frozen=True)
class Trial:
    """One recipe; the rest is that of all students: 100 pairs, batches of 128."""

    pairs: Literal["kmeans", "random", "all"] = "kmeans"
    lr: float = 1e-3
    text_lr: float = 0.1
    epochs: int = 100
    schedule: Literal["half", "cosine"] = "half"
    warm_up: int = 0
    weight_decay: float = 5e-4
    temperature: float = 0.07
    augmentation: Literal["none", "dsa", "expert"] = "none"
    norms: Literal["frozen statistics", "trained statistics", "frozen"] = "frozen statistics"
    optimiser: Literal["sgd", "adamw"] = "sgd"
    decay_by_depth: float = 1.0
    backbone: Literal["trained", "frozen"] = "trained"
    students: int = 2


TRIALS = [
    Trial(backbone="frozen", lr=0.0),
    Trial(),
    Trial(augmentation="dsa"),
    Trial(lr=3e-3, augmentation="dsa", schedule="cosine"),
    Trial(schedule="cosine", warm_up=10),
    Trial(norms="trained statistics"),
    Trial(lr=1e-2),
    Trial(lr=3e-2, students=1),
    Trial(lr=3e-2, decay_by_depth=0.5, students=1),
    Trial(lr=1e-2, text_lr=0.3, epochs=50, schedule="cosine"),
    Trial(lr=1e-2, text_lr=0.5, epochs=50, schedule="cosine"),
    Trial(lr=1e-2, text_lr=1.0, epochs=50, schedule="cosine"),
    Trial(lr=5e-3, text_lr=0.5, epochs=50, schedule="cosine"),
    Trial(lr=1e-2, text_lr=0.5, epochs=20, schedule="cosine"),
    Trial(lr=1e-4, text_lr=3e-3, epochs=50, schedule="cosine", optimiser="adamw"),
    Trial(lr=1e-2, text_lr=0.5, epochs=50, schedule="cosine", temperature=0.1),
    Trial(lr=1e-2, text_lr=0.5, epochs=50, schedule="cosine", decay_by_depth=0.8),
    Trial("random", lr=1e-2, text_lr=0.5, epochs=50, schedule="cosine"),
    Trial("all", 1e-2, epochs=8, schedule="cosine", weight_decay=0.0, students=1),
    Trial("all", 1e-2, 0.3, epochs=6, schedule="cosine", weight_decay=0.0, students=1),
    Trial("all", 1e-2, 0.5, epochs=8, schedule="cosine", weight_decay=0.0, students=1),
    Trial("all", 1e-2, 0.5, epochs=16, schedule="cosine", augmentation="expert", students=1),
    Trial("all", 1e-4, 3e-3, epochs=8, schedule="cosine", optimiser="adamw", weight_decay=0.05, students=1),
    Trial("all", 1e-2, epochs=8, schedule="cosine", augmentation="expert", students=1),
    Trial("all", 3e-2, epochs=8, schedule="cosine", students=1),
]


def depth_of(name: str, blocks: int) -> int:
    """How many blocks stand behind a parameter of the backbone."""
    if ".blocks." not in name:
        return blocks if "stem" in name or ".bn1." in name else 0
    return blocks - 1 - int(name.split(".blocks.")[1].split(".", maxsplit=1)[0])


def groups_of(model: TwoTower, trial: Trial) -> list[dict[str, object]]:
    """Parameters with their step sizes."""
    names = [name for name in model.image_parameters() if ".blocks." in name]
    blocks = 1 + max(int(name.split(".blocks.")[1].split(".")[0]) for name in names)
    found: list[dict[str, object]] = [{"params": list(model.text_parameters().values()), "full": trial.text_lr}]
    for name, parameter in model.image_parameters().items():
        if parameter.requires_grad and trial.backbone == "trained":
            found.append({"params": [parameter], "full": trial.lr * trial.decay_by_depth ** depth_of(name, blocks)})
    return found


def prepare_norms(model: TwoTower, trial: Trial) -> None:
    """Norms as the trial wants them."""
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            if trial.norms == "trained statistics":
                layer.train()
            if trial.norms == "frozen":
                layer.requires_grad_(False)


def share(trial: Trial, when: float) -> float:
    """What is left of the step sizes after so many epochs."""
    warm = min(1.0, (when + 1) / trial.warm_up) if trial.warm_up else 1.0
    if trial.schedule == "half":
        return warm * (0.1 if int(when) >= trial.epochs / 2 else 1.0)
    return warm * (1 + math.cos(math.pi * when / trial.epochs)) / 2


def train_one(encoded: EncodedDataset, train: EncodedSplit, links: Tensor, trial: Trial, seed: int) -> TwoTower:
    """A model after the trial's training."""
    model = encoded.new_model(seed).train()
    prepare_norms(model, trial)
    groups, encoder = groups_of(model, trial), encoded.image_encoder
    optimiser: torch.optim.Optimizer = torch.optim.SGD(
        groups, lr=trial.lr, momentum=0.9, weight_decay=trial.weight_decay
    )
    if trial.optimiser == "adamw":
        optimiser = torch.optim.AdamW(groups, lr=trial.lr, weight_decay=trial.weight_decay)
    for epoch in range(trial.epochs):
        random = generator(seed, "batches", epoch)
        with global_seed(seed, "dropout", epoch):
            own = one_link_per_image(links, random) if trial.pairs == "all" else links
            steps = list(batches(len(own), 128, random))
            for step, rows in enumerate(steps):
                for group in optimiser.param_groups:
                    group["lr"] = group["full"] * share(trial, epoch + step / len(steps))
                pixels = train.pairs.inputs.take(own[rows, 0])
                if trial.augmentation == "dsa":
                    pixels = dsa(pixels, random)
                if trial.augmentation == "expert":
                    pixels = encoder.normalise(expert_augmentation(encoder.denormalise(pixels).clamp(0, 1), random))
                images, texts = model(pixels, train.pairs.texts[own[rows, 1]])
                loss = info_nce(images, texts, trial.temperature)
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
    return model


def run(encoded: EncodedDataset, trial: Trial) -> dict[str, object]:
    """A row of the table."""
    train, validation, links = encoded.split("train"), encoded.split("val"), encoded.split("train").pairs.links
    if trial.pairs != "all":
        links = links[choose_pairs(trial.pairs, encoded.pair_features(train), PAIRS, 0)]
    recalls, begin = [], time.perf_counter()
    for student in range(trial.students):
        model = train_one(encoded, train, links, trial, derive(0, "selection", student))
        recalls.append(model_recall(model, validation).mean)
    seconds = (time.perf_counter() - begin) / trial.students
    deviation = statistics.stdev(recalls) if len(recalls) > 1 else 0.0
    return {
        **asdict(trial),
        "mean": round(statistics.fmean(recalls), 2),
        "std": round(deviation, 2),
        "seconds": round(seconds),
    }


def done() -> list[dict[str, str]]:
    """The rows so far."""
    return list(csv.DictReader(CSV.open(newline=""))) if CSV.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="Flickr8k, prepared for regime full")
    parser.add_argument("--only", choices=("kmeans", "random", "all"))
    arguments = parser.parse_args()
    encoded = open_prepared(arguments.data).encoded()
    names = [field.name for field in fields(Trial)]
    for trial in TRIALS:
        key = {name: str(getattr(trial, name)) for name in names}
        if arguments.only in (None, trial.pairs) and not any({n: row[n] for n in names} == key for row in done()):
            row = run(encoded, trial)
            fresh = not CSV.exists()
            with CSV.open("a", newline="") as file:
                writer = csv.DictWriter(file, fieldnames=list(row), lineterminator="\n")
                if fresh:
                    writer.writeheader()
                writer.writerow(row)
            print(row, flush=True)


if __name__ == "__main__":
    main()
