"""What one distillation iteration costs, against the bare network and against the published way of doing it.

    python -m benchmarks.step

Every figure is a median of the ratios of interleaved runs in this process, because machines are noisy. Data and weights
are made here: no dataset is needed. Writes results/step.csv and results/memory.csv.

- `ours_over_bare`: a whole iteration of MDM (draw and merge a teacher, swap its weights, encode, loss, backward,
  update), over the bare image network alone: forward on the real batch (none in towers `heads`) plus forward and
  backward to pixels on the synthetic one. `ours_over_bare_model` has the projectors in the bare one as well: the
  whole two-tower model, forward on real pairs, forward and backward on synthetic ones.
- `published`: NF-RegNet-B0, 64 px, 64 + 64 images: the same iteration with a model built anew, four checkpoints
  loaded from .pth files, and weights that receive gradients, over ours. Measured twice: in this process, where it
  profits from the allocator and the thread settings of this package, and alone in a process without them.
- memory: what tensors hold at most in a step of 100 pairs at 224 px, over the bare step's plus pairs, gradient,
  momentum and teacher; with the peak resident memory, which has the interpreter and the allocator's gaps on top.
"""

from __future__ import annotations

import argparse
import csv
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import pairstill  # noqa: F401  (before torch)
from pairstill.distillation.distribution_matching import encode_real_batch
from pairstill.distillation.synthetic_pairs import SyntheticPairs
from pairstill.experts.bank import Bank, parameters_of
from pairstill.experts.frozen_teacher import Teacher
from pairstill.experts.model_stock import merge, merge_ratio
from pairstill.experts.teacher_weights import TEACHERS
from pairstill.features.training_pairs import TensorInputs, TrainingPairs
from pairstill.methods.distributions import mdm
from pairstill.runtime.memory import peak_mib
from pairstill.runtime.seeds import generator
from pairstill.towers.folding import fold
from pairstill.towers.image_encoder import load_image_encoder
from pairstill.towers.passes import Passes
from pairstill.towers.two_tower import Towers, TwoTower, build_model
from pairstill.training.losses import agreement, discrepancy, info_nce, kernel_energy

RESULTS = Path(__file__).parent / "results"
TEXT_WIDTH = 384
REAL = 64
REGNET = Towers(image="nf_regnet_b0@random", image_size=64, train="full")


class Made:
    """Stands where `pairstill.features.encoded_dataset.EncodedDataset` does, on random images and texts."""

    def __init__(self, towers: Towers, real: int) -> None:
        self.towers, self.device, self.passes = towers, "cpu", Passes()
        self.image_encoder = load_image_encoder(towers.image)
        heads = towers.train == "heads"
        self.front = fold(self.image_encoder, towers.image_size) if heads else torch.nn.Identity()
        size = towers.image_size
        inputs = torch.randn(real, self.image_encoder.width) if heads else torch.randn(real, 3, size, size)
        rows = torch.arange(real)
        self.pairs = TrainingPairs(TensorInputs(inputs), torch.randn(real, TEXT_WIDTH), torch.stack([rows, rows], 1))

    def new_model(self, seed: int) -> TwoTower:
        """As `Encoded.new_model`."""
        return build_model(self.towers, self.image_encoder, TEXT_WIDTH, seed)


def make_bank(made: Made, folder: Path, experts: int = 3, epochs: int = 3) -> Bank:
    """Experts that moved a little from the anchor, at random."""
    anchor = parameters_of(made.new_model(0))
    bank = Bank.create(folder, anchor, {}, "made", {})
    for expert in range(experts):
        random = generator(0, "expert", expert)
        moved = [
            {n: p + 0.01 * torch.randn(p.shape, generator=random) for n, p in anchor.items()} for _ in range(epochs)
        ]
        bank.add(expert, moved)
    _ = bank.gram  # reads, and so verifies, every file, as a run of any length has done
    return bank


def our_step(made: Made, bank: Bank, synthetic: SyntheticPairs) -> Callable[[], None]:
    """One iteration, exactly as `methods/under_teachers.py` does it."""
    settings = mdm.Settings()
    teacher = Teacher(made)  # type: ignore[arg-type]
    split = _Split(made.pairs)
    count = iter(range(10**9))

    def step() -> None:
        random = generator(0, "mdm", next(count))
        teacher.load(TEACHERS["merged"](bank, random, 2, 0.5))
        real = encode_real_batch(split, teacher, settings.real_batch, random)  # type: ignore[arg-type]
        encoded = teacher(made.front(synthetic.pixels(teacher.device)), synthetic.texts)
        loss, _ = mdm.objective(real, encoded, settings)
        synthetic.update(loss, settings.clip)

    return step


class _Split:
    def __init__(self, pairs: TrainingPairs) -> None:
        self.pairs = pairs


def bare_step(made: Made, synthetic: SyntheticPairs) -> Callable[[], None]:
    """The folded network alone: forward on real images (in `full`), forward and backward on synthetic ones."""
    size = made.towers.image_size
    network = made.front if made.towers.train == "heads" else fold(made.image_encoder, size)
    pictures = torch.randn(REAL, 3, size, size).contiguous(memory_format=torch.channels_last)

    def step() -> None:
        if made.towers.train == "full":
            with torch.no_grad():
                network(pictures)
        synthetic.images.grad = None
        network(synthetic.pixels(torch.device("cpu"))).sum().backward()

    return step


def bare_model_step(made: Made, synthetic: SyntheticPairs) -> Callable[[], None]:
    """The folded two-tower model alone: forward on real pairs, forward and backward on synthetic ones."""
    teacher = Teacher(made)  # type: ignore[arg-type]
    inputs, texts = made.pairs.inputs.take(torch.arange(REAL)), made.pairs.texts[:REAL]

    def step() -> None:
        with torch.no_grad():
            teacher(inputs, texts)
        synthetic.images.grad = synthetic.texts.grad = None
        images, captions = teacher(made.front(synthetic.pixels(teacher.device)), synthetic.texts)
        (images.sum() + captions.sum()).backward()

    return step


def published_step(made: Made, bank: Bank, images: Tensor, texts: Tensor, folder: Path) -> Callable[[], None]:
    """The same iteration as published code does it."""
    files = []
    for number in range(4):
        weights = bank.parameters(number)
        files.append(folder / f"{number}.pth")
        torch.save(weights, files[-1])
    images, texts = images.clone().requires_grad_(), texts.clone().requires_grad_()
    optimiser = torch.optim.SGD([images, texts], lr=100.0, momentum=0.5)
    real_images = made.pairs.inputs.take(torch.arange(REAL))
    real_texts = made.pairs.texts[:REAL]

    def step() -> None:
        encoder = load_image_encoder(made.towers.image)
        model = build_model(made.towers, encoder, TEXT_WIDTH, 0)
        loaded = [torch.load(file, weights_only=True) for file in files]
        anchor = parameters_of(model)
        flat = [torch.stack([(w[n] - anchor[n]).flatten() for w in loaded[:2]]) for n in anchor]
        ratios = torch.cat([merge_ratio((block @ block.T)[None]) for block in flat])
        merged = merge(anchor, loaded[:2], ratios, 0.5)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(merged[name])
        real = model(real_images, real_texts)
        synthetic = model(images, texts)
        loss = info_nce(*synthetic)
        for feature in (agreement, discrepancy):
            loss = loss + 0.8 * kernel_energy(feature(*real).detach(), feature(*synthetic))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([images, texts], 1.0)
        optimiser.step()

    return step


def race(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, round by round, each round in the other order, after one round to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name in list(steps)[:: 1 if number % 2 else -1]:
            begin = time.perf_counter()
            steps[name]()
            if number:
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def over(seconds: dict[str, list[float]], one: str, other: str) -> float:
    """The median over all rounds of how much longer `one` took: a machine that slows down slows both of a round."""
    return statistics.median(a / b for a, b in zip(seconds[one], seconds[other], strict=True))


def pairs_of(towers: Towers, count: int) -> SyntheticPairs:
    size = towers.image_size
    random = generator(0, "pairs")
    images, texts = (
        torch.randn(count, 3, size, size, generator=random),
        torch.randn(count, TEXT_WIDTH, generator=random),
    )
    return SyntheticPairs(images, texts, image_lr=1.0, text_lr=1.0, momentum=0.5)


def measure_steps(rounds: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    cases = [
        (Towers(image_size=112), 100),
        (Towers(image_size=224), 100),
        (Towers(image_size=64, train="full"), 100),
        (REGNET, 64),
    ]
    for towers, count in cases:
        with tempfile.TemporaryDirectory() as folder:
            made = Made(towers, REAL)
            bank = make_bank(made, Path(folder) / "bank")
            synthetic = pairs_of(towers, count)
            ours = our_step(made, bank, synthetic)
            turns = rounds if towers.train == "heads" else 3 * rounds  # short steps: more of them
            bare, model = (make(made, pairs_of(towers, count)) for make in (bare_step, bare_model_step))
            found = race({"ours": ours, "bare": bare, "model": model}, turns)
            published: dict[str, object] = {"published_over_ours": "", "published_alone_over_ours": ""}
            if towers == REGNET:  # in a race of its own: it leaves caches and heap in a state that ours would pay for
                start = pairs_of(towers, count)
                theirs = published_step(made, bank, start.images.detach(), start.texts.detach(), Path(folder))
                beside = race({"ours": ours, "published": theirs}, rounds)
                published = {
                    "published_over_ours": round(over(beside, "published", "ours"), 2),
                    "published_alone_over_ours": round(published_alone(rounds) / statistics.median(found["ours"]), 2),
                }
        rows.append(
            {
                "towers": towers.describe(),
                "pairs": count,
                "ours_seconds": round(statistics.median(found["ours"]), 3),
                "ours_over_bare": round(over(found, "ours", "bare"), 3),
                "ours_over_bare_model": round(over(found, "ours", "model"), 3),
                **published,
                "rounds": rounds,
            }
        )
        print(rows[-1], flush=True)
    return rows


def published_alone(rounds: int) -> float:
    """Median seconds of the published way in a process with the system's own allocator and thread settings."""
    environment = {**os.environ, "GOMP_SPINCOUNT": "300000"}  # what libgomp takes by itself on an idle machine
    command = [sys.executable, "-m", "benchmarks.step", "--published-alone", "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout)


def time_published(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made, start = Made(REGNET, REAL), pairs_of(REGNET, 64)
        bank = make_bank(made, Path(folder) / "bank")
        step = published_step(made, bank, start.images.detach(), start.texts.detach(), Path(folder))
        print(statistics.median(race({"published": step}, rounds)["published"]))


def peak_of(kind: str) -> None:
    """Print the most that tensors hold during a step, the peak resident memory, and the sizes of what must be held."""
    towers = Towers(image_size=224)
    made = Made(towers, REAL)
    synthetic = pairs_of(towers, 100)
    with tempfile.TemporaryDirectory() as folder:
        if kind == "ours":
            step = our_step(made, make_bank(made, Path(folder)), synthetic)
        else:
            step = bare_step(made, synthetic)
        for _ in range(3):
            step()
        resident = peak_mib()
        tensors = held_by_tensors() + grown_by(step)
    pairs = (synthetic.images.numel() + synthetic.texts.numel()) * 4 / 2**20
    teacher = sum(p.numel() for p in made.new_model(0).parameters()) * 4 / 2**20
    print(json.dumps({"tensors": tensors, "resident": resident, "pairs": pairs, "teacher": teacher}))


def held_by_tensors() -> float:
    """MiB of all tensors that exist now, each storage once; those that map a file hold no memory of their own."""
    gc.collect()
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in gc.get_objects() if is_tensor(t)}
    mapped = [
        range(*(int(end, 16) for end in line.split()[0].split("-")))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(".safetensors")
    ]
    return float(sum(size for start, size in storages.items() if not any(start in part for part in mapped))) / 2**20


def is_tensor(thing: object) -> bool:
    return issubclass(type(thing), Tensor)


def grown_by(step: Callable[[], None]) -> float:
    """MiB by which tensors grow at most during a step, from every allocation that torch records."""
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    assert profile.profiler is not None
    results = profile.profiler.kineto_results
    assert results is not None
    sizes = [event.nbytes() for event in results.events() if event.name() == "[memory]"]
    return float(max(itertools.accumulate(sizes))) / 2**20


def measure_memory(repeats: int = 3) -> list[dict[str, object]]:
    """Tensors are counted exactly; resident memory varies with where the allocator leaves gaps, hence the median."""
    found: dict[str, dict[str, float]] = {}
    for kind in ("bare", "ours"):
        command = [sys.executable, "-m", "benchmarks.step", "--peak-of", kind]
        runs = [
            json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            for _ in range(repeats)
        ]
        found[kind] = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    # The bare step already holds the pairs and their gradient; momentum and one teacher come on top.
    allowed = found["bare"]["tensors"] + found["ours"]["pairs"] + found["ours"]["teacher"]
    row: dict[str, object] = {
        "what": "100 pairs, 224 px, efficientnet_lite0, heads",
        "ours_mib": round(found["ours"]["tensors"]),
        "bare_mib": round(found["bare"]["tensors"]),
        "allowed_mib": round(allowed),
        "ours_over_allowed": round(found["ours"]["tensors"] / allowed, 3),
        "ours_resident_mib": round(found["ours"]["resident"]),
        "bare_resident_mib": round(found["bare"]["resident"]),
    }
    print(row, flush=True)
    return [row]


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--peak-of", choices=("ours", "bare"), help=argparse.SUPPRESS)
    parser.add_argument("--published-alone", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.published_alone:
        time_published(arguments.rounds)
        return
    if arguments.peak_of:
        peak_of(arguments.peak_of)
        return
    write(RESULTS / "memory.csv", measure_memory())
    write(RESULTS / "step.csv", measure_steps(arguments.rounds))


if __name__ == "__main__":
    main()
