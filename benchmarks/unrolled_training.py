"""What rehearsal's inner loop and outer loss cost: with weights or in dual form, graphs kept or built again.

    python -m benchmarks.unrolled_training

25 inner epochs of a student 512 wide, and an outer loss on 2,048 real pairs, on random features as wide as those of
EfficientNet-Lite0 and MiniLM. Seconds are medians of interleaved runs in this process, by one thread. Writes
results/unrolled_training.csv.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.step import RESULTS, write
from pairstill.distillation import unrolled_training
from pairstill.distillation.functional_student import FunctionalStudent, StudentData, draw_batches
from pairstill.distillation.unrolled_dual_form import backward_through_dual_form
from pairstill.distillation.unrolled_training import SgdSettings, backward_through_training
from pairstill.methods.through_training.rehearsal import outer_loss_on
from pairstill.runtime.memory import keep_freed_memory
from pairstill.towers.two_tower import Towers, build_heads

IMAGE_WIDTH, TEXT_WIDTH, INNER_EPOCHS, BATCH, REAL = 1280, 384, 25, 128, 2048
WAYS = {
    "weights, graphs built again": (backward_through_training, 1),
    "weights, graphs kept": (backward_through_training, unrolled_training.KEPT_STEPS),
    "coefficients, graphs built again": (backward_through_dual_form, 1),
    "coefficients, graphs kept": (backward_through_dual_form, unrolled_training.KEPT_STEPS),
}
"""The first was rehearsal's way, the last is."""


def features(count: int) -> tuple[Tensor, Tensor]:
    """Random pairs of the size that the encoders give."""
    return torch.randn(count, IMAGE_WIDTH).relu() / 2, torch.randn(count, TEXT_WIDTH) / TEXT_WIDTH**0.5


def timed(way: Callable[..., Tensor], kept: int, pairs: tuple[Tensor, Tensor]) -> tuple[float, Tensor]:
    """Seconds of an inner loop with its outer loss, and the gradient of the image features."""
    unrolled_training.KEPT_STEPS = kept
    model = build_heads(Towers(), IMAGE_WIDTH, TEXT_WIDTH, seed=0)
    start = {name: value.detach() for name, value in model.named_parameters()}
    inputs, texts = (part.clone().requires_grad_() for part in pairs)
    lr, count = torch.tensor(0.1), len(inputs)
    size = min(BATCH, count)
    batches = draw_batches(count, size, math.ceil(INNER_EPOCHS * count / size), torch.Generator().manual_seed(0))
    outer_loss = outer_loss_on(model, *features(REAL))
    begin = time.perf_counter()
    way(
        FunctionalStudent(model, 0),
        start,
        StudentData(inputs, texts, lr, lr),
        batches,
        SgdSettings(0.9, 5e-4),
        outer_loss,
    )
    seconds = time.perf_counter() - begin
    assert inputs.grad is not None
    return seconds, inputs.grad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[20, 100, 200, 500])
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)  # as in a comparison with a row on each core
    rows = []
    for count in arguments.pairs:
        torch.manual_seed(0)
        pairs, taken, gradients = features(count), dict[str, list[float]](), list[Tensor]()
        for run in range(1 + arguments.runs):  # the first fills the allocator
            for name, (way, kept) in WAYS.items():
                torch.manual_seed(1)
                seconds, gradient = timed(way, kept, pairs)
                gradients.append(gradient)
                assert (gradient - gradients[0]).norm() < 1e-4 * gradients[0].norm()
                if run:
                    taken.setdefault(name, []).append(seconds)
        first = statistics.median(next(iter(taken.values())))
        for name, seconds_of in taken.items():
            median = statistics.median(seconds_of)
            row = {"pairs": count, "way": name, "seconds": round(median, 2), "times_faster": round(first / median, 2)}
            rows.append(row)
            print(row, flush=True)
    write(RESULTS / "unrolled_training.csv", rows)


if __name__ == "__main__":
    main()
