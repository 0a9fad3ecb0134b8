"""The loop of DM and MDM: each iteration a teacher encodes real and synthetic pairs, and an objective compares them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from pairstill.bank import Bank
from pairstill.distilled import DistilledSet
from pairstill.encoded import EncodedSplit
from pairstill.files import write_json
from pairstill.methods.anatomy import SHOWN_REAL_PAIRS, anatomy, ratios_by_layer
from pairstill.methods.checks import check_settings
from pairstill.methods.contract import Context, finished
from pairstill.methods.first_pairs import read_first_pairs
from pairstill.methods.optimise import Chosen, optimise
from pairstill.methods.start import start
from pairstill.methods.synthetic import SyntheticPairs
from pairstill.seeds import generator
from pairstill.teacher import Teacher
from pairstill.teachers import TEACHERS

Vectors = tuple[Tensor, Tensor]
Objective = Callable[[Vectors, Vectors, Any], tuple[Tensor, dict[str, float]]]
"""`objective(real, synthetic, settings)`: the loss, and its terms with `loss` among them, from unit vectors."""

Init = Literal["kmeans", "kmeans-projected", "kmeans-image", "kmeans-text", "random", "herding", "k-center", "noise"]


@dataclass(frozen=True)
class TeacherSettings:
    """Settings; the defaults are the paper's for Flickr8k, 100 pairs.

    Args:
        iterations: Updates of the synthetic pairs.
        init: Where the pairs start.
        teacher: Which weights encode, at each iteration.
        merged_experts: How many experts a merged teacher is made of.
        alpha: How far a merged teacher goes from the anchor to its experts (Eq. 5).
        image_lr: Step size for pixels.
        text_lr: Step size for text embeddings.
        momentum: Momentum of SGD on the pairs.
        clip: Largest norm of the whole gradient.
        real_batch: Real pairs in an iteration.
        check_every: Iterations between two scores on the split that the protocol chooses by.
    """

    iterations: int = 200
    init: Init = "kmeans"
    teacher: Literal["merged", "weighted-sum", "fine-tuned", "pretrained"] = "merged"
    merged_experts: int = 2
    alpha: float = 0.5
    image_lr: float = 100.0
    text_lr: float = 100.0
    momentum: float = 0.5
    clip: float = 1.0
    real_batch: int = 64
    check_every: int = 25

    def __post_init__(self) -> None:
        least = {"iterations": 1, "merged_experts": 2, "real_batch": 2, "check_every": 1, "image_lr": 0, "text_lr": 0}
        check_settings(self, least, ("clip",))


def distil_under_teachers(pairs: EncodedSplit, context: Context, name: str, objective: Objective) -> DistilledSet:
    """Move pixels and text embeddings down the gradient of `objective`."""
    settings: TeacherSettings = context.settings
    bank = context.need_bank()
    teacher = Teacher(context.encoded)

    def step(synthetic: SyntheticPairs, iteration: int) -> dict[str, float]:
        random = generator(context.seed, name, iteration)
        teacher.load(TEACHERS[settings.teacher](bank, random, settings.merged_experts, settings.alpha))
        real = encode_real_batch(pairs, teacher, settings.real_batch, random)
        encoded = teacher(
            context.encoded.through_front(synthetic.pixels(teacher.device)), synthetic.texts.to(teacher.device)
        )
        loss, terms = objective(real, encoded, settings)
        synthetic.update(loss, settings.clip)
        return terms

    synthetic = SyntheticPairs(
        *start(pairs, context, settings.init), settings.image_lr, settings.text_lr, settings.momentum
    )
    chosen = optimise(context, name, synthetic, step, settings.iterations, settings.check_every)
    _look_inside(pairs, context, name, teacher, bank, chosen)
    return finished(pairs, context, name, chosen.images, chosen.texts, chosen=chosen.provenance())


@torch.no_grad()
def _look_inside(
    pairs: EncodedSplit, context: Context, name: str, teacher: Teacher, bank: Bank, chosen: Chosen
) -> None:
    """Write what a teacher of this run sees in real, initial and distilled pairs into the run folder."""
    settings: TeacherSettings = context.settings
    random = generator(context.seed, name, "anatomy")
    teacher.load(TEACHERS[settings.teacher](bank, random, settings.merged_experts, settings.alpha))
    first, encoder = read_first_pairs(context.run.folder), context.encoded.image_encoder
    assert first is not None, "every start keeps its first pairs"

    def encode(images: Tensor, texts: Tensor) -> Vectors:
        return teacher(context.encoded.to_inputs(images).to(teacher.device), texts.to(teacher.device))

    found = anatomy(
        encode_real_batch(pairs, teacher, SHOWN_REAL_PAIRS, random),
        encode(encoder.normalise(first.pictures), first.texts),
        encode(chosen.images, chosen.texts),
    )
    if len(bank.experts) >= settings.merged_experts:
        found["ratios"] = ratios_by_layer(bank, random, settings.merged_experts)
    write_json(context.run.folder / "anatomy.json", found)


@torch.no_grad()
def encode_real_batch(pairs: EncodedSplit, teacher: Teacher, size: int, random: torch.Generator) -> Vectors:
    """Unit vectors (images, texts) of `size` random real pairs, without gradients."""
    links = pairs.pairs.links
    rows = links[torch.randperm(len(links), generator=random)[:size]]
    inputs, texts = pairs.pairs.inputs.take(rows[:, 0]), pairs.pairs.texts[rows[:, 1]]
    return teacher(inputs.to(teacher.device), texts.to(teacher.device))
