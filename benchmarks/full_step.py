"""What training and distilling cost in regime `full`, against the passes of the bare network.

    python -m benchmarks.full_step [--rounds 5]

EfficientNet-Lite0 at 112 px on random images and texts: no dataset is needed. A figure is the median of the ratios of
interleaved runs in this process, because machines are noisy. Writes results/full_step.csv.

- `student`: five epochs of a student on 100 pairs, over five times forward and backward to weights on 100 images.
- `expert`: an epoch of an expert on 640 images of 8 bits, over five times the same on 128 images.
- `mdm`: an iteration with 100 pairs and 64 real ones, over forward on 64 images and forward and backward to pixels on
  100, with a network that is folded once.
- `lors`: an iteration with 8 inner steps of 20 pairs, over 8 times forward and backward to weights and 8 times forward,
  backward with a graph, and backward through that to pixels.

`passes` is what a whole student (100 pairs, all its epochs) or an iteration costs in bare forward-and-backward passes
of 100 images to weights.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.step import REAL, RESULTS, TEXT_WIDTH, Made, bare_step, make_bank, our_step, over, pairs_of, race, write
from pairstill.distillation.functional_student import FunctionalStudent, StudentData, as_leaves, draw_batches
from pairstill.distillation.trajectory_loss import TrajectorySegment, stepwise_loss
from pairstill.experts.bank import Bank
from pairstill.features.training_pairs import TensorInputs, TrainingPairs
from pairstill.runtime.seeds import generator
from pairstill.towers.image_encoder import ImageEncoder
from pairstill.towers.two_tower import Towers
from pairstill.training.training_loop import train
from pairstill.training.training_recipe import FULL_EXPERT_RECIPE, FULL_STUDENT_RECIPE, Recipe

TOWERS = Towers(image_size=112, train="full")
PAIRS = 100
INNER_STEPS, INNER_BATCH = 8, 20
REPEATS = 5

Steps = tuple[Callable[[], None], Callable[[], None]]
"""Ours, and the bare passes."""


def images_of(count: int) -> Tensor:
    size = TOWERS.image_size
    return torch.randn(count, 3, size, size).contiguous(memory_format=torch.channels_last)


def trained_network(made: Made) -> ImageEncoder:
    """A backbone that receives gradients, as a model of these towers has one."""
    body = made.new_model(0).body
    assert isinstance(body, ImageEncoder)
    return body


def passes_to_weights(made: Made, count: int, times: int) -> Callable[[], None]:
    """So many forward and backward passes of the network alone."""
    network, images = trained_network(made), images_of(count)

    def step() -> None:
        for _ in range(times):
            network.zero_grad(set_to_none=True)
            network(images).square().sum().backward()

    return step


def training(made: Made, pairs: TrainingPairs, recipe: Recipe) -> Callable[[], None]:
    """The product's own training of a model that is there already."""
    model, gentle = made.new_model(0), Recipe(**{**vars(recipe), "lr": 1e-6, "text_lr": 1e-6})
    return lambda: train(model, pairs, gentle, seed=0)


def student_steps(made: Made) -> Steps:
    rows = torch.arange(PAIRS)
    pairs = TrainingPairs(TensorInputs(images_of(PAIRS)), torch.randn(PAIRS, TEXT_WIDTH), torch.stack([rows, rows], 1))
    short = Recipe(**{**vars(FULL_STUDENT_RECIPE), "epochs": REPEATS})
    return training(made, pairs, short), passes_to_weights(made, PAIRS, REPEATS)


class StoredImages:
    """Images of 8 bits, normalised when they are taken, as those of a prepared folder are."""

    def __init__(self, encoder: ImageEncoder, count: int) -> None:
        self.encoder = encoder
        size = TOWERS.image_size
        self.pixels = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, rows: Tensor, random: torch.Generator | None = None) -> Tensor:
        """As `training_pairs.Inputs`."""
        return self.encoder.normalise(self.pixels[rows])


def expert_steps(made: Made) -> Steps:
    size = FULL_EXPERT_RECIPE.batch_size
    rows = torch.arange(REPEATS * size)
    inputs = StoredImages(made.image_encoder, len(rows))
    pairs = TrainingPairs(inputs, torch.randn(len(rows), TEXT_WIDTH), torch.stack([rows, rows], 1))
    epoch = Recipe(**{**vars(FULL_EXPERT_RECIPE), "epochs": 1})
    return training(made, pairs, epoch), passes_to_weights(made, size, REPEATS)


def mdm_steps(made: Made, bank: Bank) -> Steps:
    return our_step(made, bank, pairs_of(TOWERS, PAIRS)), bare_step(made, pairs_of(TOWERS, PAIRS))


def lors_steps(made: Made, bank: Bank) -> Steps:
    model, segment = made.new_model(0), TrajectorySegment(bank.anchor, bank.parameters(0))
    random = generator(0, "lors")
    batches = draw_batches(PAIRS, INNER_BATCH, INNER_STEPS, random)

    def ours() -> None:
        data = StudentData(
            images_of(PAIRS).requires_grad_(),
            torch.randn(PAIRS, TEXT_WIDTH).requires_grad_(),
            torch.tensor(1e-4).requires_grad_(),
            torch.tensor(1e-4).requires_grad_(),
            torch.eye(PAIRS).requires_grad_(),
        )
        stepwise_loss(FunctionalStudent(model, 0), segment, data, batches)

    return ours, bare_lors(made)


def bare_lors(made: Made) -> Callable[[], None]:
    """The network's passes of an iteration of LoRS, and nothing else."""
    network = trained_network(made)
    weights = as_leaves(dict(network.named_parameters()))
    directions = [torch.randn_like(weight) for weight in weights.values()]

    def loss(images: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(network, weights, (images,))
        return output.square().sum()

    def step() -> None:
        for _ in range(INNER_STEPS):
            torch.autograd.grad(loss(images_of(INNER_BATCH)), list(weights.values()))
        for _ in range(INNER_STEPS):
            images = images_of(INNER_BATCH).requires_grad_()
            found = torch.autograd.grad(loss(images), list(weights.values()), create_graph=True)
            pull = torch.stack([(way * grad).sum() for way, grad in zip(directions, found, strict=True)]).sum()
            torch.autograd.grad(pull, images)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    made, rows = Made(TOWERS, REAL), []
    with tempfile.TemporaryDirectory() as folder:
        bank = make_bank(made, Path(folder) / "bank")
        cases = {
            "student": (student_steps(made), FULL_STUDENT_RECIPE.epochs / REPEATS),
            "expert": (expert_steps(made), 1.0),
            "mdm": (mdm_steps(made, bank), 1.0),
            "lors": (lors_steps(made, bank), 1.0),
        }
        for name, ((ours, bare), whole) in cases.items():
            seconds = race({"ours": ours, "bare": bare, "pass": passes_to_weights(made, PAIRS, 1)}, rounds)
            row: dict[str, object] = {
                "what": name,
                "seconds": round(whole * statistics.median(seconds["ours"]), 3),
                "over_bare": round(over(seconds, "ours", "bare"), 3),
                "passes": round(whole * over(seconds, "ours", "pass"), 2),
                "rounds": rounds,
            }
            rows.append(row)
            print(row, flush=True)
            write(RESULTS / "full_step.csv", rows)


if __name__ == "__main__":
    main()
