"""The loop of DM and MDM: each iteration a teacher encodes real and synthetic pairs, and an objective compares them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from pairstill.distillation.contract import Context, finished
from pairstill.distillation.diagnostics import SHOWN_REAL_PAIRS, merge_ratios_by_layer, pair_diagnostics
from pairstill.distillation.initial_pairs import initial_pairs
from pairstill.distillation.outer_loop import ChosenIterate, optimise
from pairstill.distillation.setting_checks import check_settings
from pairstill.distillation.synthetic_pairs import SyntheticPairs
from pairstill.experts.bank import Bank
from pairstill.experts.frozen_teacher import Teacher
from pairstill.experts.teacher_weights import TEACHERS
from pairstill.features.encoded_dataset import EncodedSplit
from pairstill.runtime.files import write_json
from pairstill.runtime.seeds import generator
from pairstill.sets.distilled_set import DistilledSet
from pairstill.sets.initial_record import read_initial_pairs
from pairstill.sets.run_record import DIAGNOSTICS

Vectors = tuple[Tensor, Tensor]
Objective = Callable[[Vectors, Vectors, Any], tuple[Tensor, dict[str, float]]]
"""`objective(real, synthetic, settings)`: the loss, and its terms with `loss` among them, from unit vectors."""

Init = Literal["kmeans", "kmeans-projected", "kmeans-image", "kmeans-text", "random", "herding", "k-center", "noise"]


@dataclass(frozen=True)
class DistributionMatchingSettings:
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
        patience: Checks in a row that may be no better before it ends; 0 goes on to the last iteration.
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
    patience: int = field(default=0, metadata={"added": True})

    def __post_init__(self) -> None:
        least = {"iterations": 1, "merged_experts": 2, "real_batch": 2, "check_every": 1, "patience": 0}
        check_settings(self, {**least, "image_lr": 0, "text_lr": 0}, ("clip",))


def match_distributions(pairs: EncodedSplit, context: Context, objective: Objective) -> DistilledSet:
    """Move pixels and text embeddings down the gradient of `objective`."""
    settings: DistributionMatchingSettings = context.settings
    bank = context.need_bank()
    teacher = Teacher(context.encoded)

    def step(synthetic: SyntheticPairs, iteration: int) -> dict[str, float]:
        random = generator(context.seed, context.method, iteration)
        teacher.load(TEACHERS[settings.teacher](bank, random, settings.merged_experts, settings.alpha))
        real = encode_real_batch(pairs, teacher, settings.real_batch, random)
        encoded = teacher(
            context.encoded.through_front(synthetic.pixels(teacher.device)), synthetic.texts.to(teacher.device)
        )
        loss, terms = objective(real, encoded, settings)
        synthetic.update(loss, settings.clip)
        return terms

    synthetic = SyntheticPairs(
        *initial_pairs(pairs, context, settings.init), settings.image_lr, settings.text_lr, settings.momentum
    )
    chosen = optimise(context, synthetic, step, settings.iterations, settings.check_every, patience=settings.patience)
    _write_diagnostics(pairs, context, teacher, bank, chosen)
    return finished(pairs, context, chosen.images, chosen.texts, chosen=chosen.provenance())


@torch.no_grad()
def _write_diagnostics(
    pairs: EncodedSplit, context: Context, teacher: Teacher, bank: Bank, chosen: ChosenIterate
) -> None:
    """Write what a teacher of this run sees in real, initial and distilled pairs into the run folder."""
    settings: DistributionMatchingSettings = context.settings
    random = generator(context.seed, context.method, "anatomy")
    teacher.load(TEACHERS[settings.teacher](bank, random, settings.merged_experts, settings.alpha))
    first, encoder = read_initial_pairs(context.run.folder), context.encoded.image_encoder
    assert first is not None, "initial pairs are always kept"

    def encode(images: Tensor, texts: Tensor) -> Vectors:
        return teacher(context.encoded.to_inputs(images).to(teacher.device), texts.to(teacher.device))

    found = pair_diagnostics(
        encode_real_batch(pairs, teacher, SHOWN_REAL_PAIRS, random),
        encode(encoder.normalise(first.pictures), first.texts),
        encode(chosen.images, chosen.texts),
    )
    if len(bank.experts) >= settings.merged_experts:
        found["ratios"] = merge_ratios_by_layer(bank, random, settings.merged_experts)
    write_json(context.run.folder / DIAGNOSTICS, found)


@torch.no_grad()
def encode_real_batch(pairs: EncodedSplit, teacher: Teacher, size: int, random: torch.Generator) -> Vectors:
    """Unit vectors (images, texts) of `size` random real pairs, without gradients."""
    links = pairs.pairs.links
    rows = links[torch.randperm(len(links), generator=random)[:size]]
    inputs, texts = pairs.pairs.inputs.take(rows[:, 0]), pairs.pairs.texts[rows[:, 1]]
    return teacher(inputs.to(teacher.device), texts.to(teacher.device))
