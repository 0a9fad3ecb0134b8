"""An NF network that has learnt something, where the hub's weights are out of reach: taught by another encoder.

    python -m benchmarks.taught_nf --data work/data --out work/nf_regnet_b1

`--data` is a prepared dataset. NF-RegNet-B1 starts from random weights and learns, on the training images alone, to
give the features that EfficientNet-Lite2 has of them (of each image and its mirror image, averaged; standardised),
through a linear layer that is thrown away afterwards: the loss is 1 - cosine. Small images first, then larger ones.
`--out` is a folder that every encoder option takes (`--towers.image work/nf_regnet_b1`). Writes results/taught_nf.csv:
the cosine on validation images after every epoch. About 35 minutes of one core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.step import RESULTS, write
from pairstill.data.augmentation import crop_and_flip, warp
from pairstill.features.encoded_dataset import EncodedDataset
from pairstill.features.feature_cache import pixel_bytes
from pairstill.features.prepared_folder import open_prepared
from pairstill.runtime.files import write_json, write_tensors
from pairstill.runtime.progress import progress
from pairstill.runtime.seeds import generator, global_seed
from pairstill.towers.image_encoder import load_image_encoder
from pairstill.towers.two_tower import Towers

ARCHITECTURE = "nf_regnet_b1"
TEACHER = "efficientnet_lite2"
STAGES = ((48, 8), (64, 12), (112, 2))
"""Side of the images, and epochs."""
BATCH = 128
LR = 1e-3
WEIGHT_DECAY = 0.02
LARGEST_GRADIENT = 1.0


class Lessons:
    """Images of a split as bytes, and what the teacher says of each."""

    def __init__(self, encoded: EncodedDataset, pixels: Tensor, name: str) -> None:
        split = encoded.split(name)
        plain, mirrored = encoded.split_features(split)[:], torch.from_numpy(encoded.views(split, 1)[:, 0].copy())
        self.pixels, self.features = pixels[split.images], (plain + mirrored) / 2

    def standardise(self, mean: Tensor, std: Tensor) -> None:
        """Centre and scale the features, in place."""
        self.features = (self.features - mean) / std

    def batches(self, size: int, random: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """All images in a random order, cropped and mirrored, with their features; what is left over is passed."""
        for rows in torch.randperm(len(self.pixels), generator=random).split(BATCH)[: len(self.pixels) // BATCH]:
            pictures = warp(self.pixels[rows].float() / 255, crop_and_flip(len(rows), random))
            yield F.interpolate(pictures, (size, size), mode="area"), self.features[rows]


def teach(train: Lessons, val: Lessons, seed: int = 0) -> tuple[nn.Module, list[dict[str, object]]]:
    """The taught network, and the cosine on validation images after each epoch."""
    encoder = load_image_encoder(f"{ARCHITECTURE}@random")
    with global_seed(seed, "taught", "head"):
        student = nn.Sequential(encoder, nn.Linear(encoder.width, train.features.shape[1]))
    epochs = [size for size, count in STAGES for _ in range(count)]
    steps = len(train.pixels) // BATCH
    optimiser = torch.optim.AdamW(student.parameters(), LR, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, LR, total_steps=steps * len(epochs), pct_start=0.1)
    rows: list[dict[str, object]] = []
    with progress(f"teaching {ARCHITECTURE}", steps * len(epochs)) as advance:
        for epoch, size in enumerate(epochs, 1):
            student.train()
            for pictures, features in train.batches(size, generator(seed, "taught", epoch)):
                loss = 1 - F.cosine_similarity(student(encoder.normalise(pictures)), features).mean()
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(student.parameters(), LARGEST_GRADIENT)
                optimiser.step()
                schedule.step()
                advance(note=f"{size} px, cosine {1 - loss.item():.3f}")
            rows.append({"epoch": epoch, "size": size, "cosine": round(cosine(student, val, size), 4)})
            print(json.dumps(rows[-1]), flush=True)
    return encoder.network, rows


@torch.no_grad()
def cosine(student: nn.Module, lessons: Lessons, size: int) -> float:
    """Mean over a split's whole images."""
    student.eval()
    encoder, found = student[0], []  # type: ignore[index]
    for pixels, features in zip(lessons.pixels.split(BATCH), lessons.features.split(BATCH), strict=True):
        pictures = F.interpolate(pixels.float() / 255, (size, size), mode="area")
        found.append(F.cosine_similarity(student(encoder.normalise(pictures)), features))
    return torch.cat(found).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a prepared dataset")
    parser.add_argument("--out", type=Path, required=True, help="the network's folder")
    arguments = parser.parse_args()
    prepared, size = open_prepared(arguments.data), STAGES[-1][0]
    towers = replace(Towers(), image=TEACHER, image_size=size)
    encoded = prepared.encoded(towers)
    pixels = torch.from_numpy(pixel_bytes(encoded.cache, encoded.dataset, size).matrix().copy())
    train, val = (Lessons(encoded, pixels, name) for name in ("train", "val"))
    mean, std = train.features.mean(0), train.features.std(0)
    for lessons in (train, val):
        lessons.standardise(mean, std)
    network, rows = teach(train, val)
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_tensors(arguments.out / "model.safetensors", network.state_dict())
    write_json(arguments.out / "config.json", {"architecture": ARCHITECTURE, "num_classes": 0})
    write(RESULTS / "taught_nf.csv", rows)


if __name__ == "__main__":
    main()
