"""What the trajectory matching methods share: settings, and the loop from a drawn segment to an update."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from pairstill.distillation.contract import Context, finished
from pairstill.distillation.functional_student import FunctionalStudent, StudentData, draw_batches
from pairstill.distillation.initial_pairs import initial_pairs
from pairstill.distillation.outer_loop import optimise
from pairstill.distillation.setting_checks import check_settings
from pairstill.distillation.synthetic_pairs import SyntheticPairs
from pairstill.distillation.trajectory_loss import draw_segment, stepwise_loss, unrolled_loss
from pairstill.features.encoded_dataset import EncodedDataset, EncodedSplit
from pairstill.runtime.seeds import derive, generator
from pairstill.sets.distilled_set import DistilledSet
from pairstill.training.student_training import Candidate

SMALLEST_LR = 1e-3

Learnable = Mapping[str, tuple[Tensor, float]]
Similarity = Callable[[Mapping[str, Tensor]], "Tensor | None"]
"""The students' soft targets [N, N] out of what is learnt; None for InfoNCE."""


@dataclass(frozen=True)
class TrajectoryMatchingSettings:
    """Settings of trajectory matching.

    Args:
        iterations: Updates of the synthetic pairs.
        init: Where the pairs start.
        inner_steps: Steps of the student in an iteration.
        inner_batch: Pairs in a student's step.
        expert_epochs: Epochs of the expert that the student has to catch up with.
        max_start_epoch: The student starts at one of so many first epochs of an expert, the anchor included.
        image_lr: Step size for pixels.
        text_lr: Step size for text embeddings.
        student_lr: The student's step size to begin with; it is learnt.
        student_text_lr: The same of its text tower, where it is another.
        ship_student_lr: Whether students of the set train with the step sizes that were learnt, or with their own.
        lr_lr: Step size for the student's step sizes.
        momentum: Momentum of SGD on all that is learnt.
        check_every: Iterations between two scores on the split that the protocol chooses by.
        patience: Checks in a row that may be no better before it ends; 0 goes on to the last iteration.
    """

    iterations: int = 1000
    init: Literal["random", "kmeans", "kmeans-image", "kmeans-text", "herding", "k-center", "noise"] = "random"
    inner_steps: int = 8
    inner_batch: int = 20
    expert_epochs: int = 1
    max_start_epoch: int = 2
    image_lr: float = 100.0
    text_lr: float = 100.0
    student_lr: float = 0.1
    lr_lr: float = 0.01
    momentum: float = 0.5
    check_every: int = 100
    patience: int = field(default=0, metadata={"added": True})
    student_text_lr: float | None = field(default=None, metadata={"added": True})
    ship_student_lr: bool = field(default=True, metadata={"added": True})

    def __post_init__(self) -> None:
        counts = ("iterations", "inner_steps", "expert_epochs", "max_start_epoch", "check_every")
        least = {**dict.fromkeys(counts, 1), "inner_batch": 2, "patience": 0, "image_lr": 0, "text_lr": 0, "lr_lr": 0}
        check_settings(self, least, ("student_lr", "student_text_lr"))


def match_trajectories(
    pairs: EncodedSplit, context: Context, exact: bool, similarity: Similarity, learnable: Learnable
) -> DistilledSet:
    """Distil by matching trajectories.

    Args:
        pairs: The training pairs.
        context: As every method has it; its settings are `TrajectoryMatchingSettings`.
        exact: Whether the gradient goes through the whole unroll, or is taken step by step.
        similarity: The students' soft targets.
        learnable: What else is learnt, by name, with its step size.
    """
    settings: TrajectoryMatchingSettings = context.settings
    bank = context.need_bank()
    model = context.encoded.new_model(seed=0)
    device = torch.device(context.encoded.device)
    lrs = {"image": settings.student_lr, "text": settings.student_text_lr or settings.student_lr}
    extra = {f"student_{tower}_lr": (torch.tensor(lr), settings.lr_lr) for tower, lr in lrs.items()}
    synthetic = SyntheticPairs(
        *initial_pairs(pairs, context, settings.init),
        settings.image_lr,
        settings.text_lr,
        settings.momentum,
        {**extra, **learnable},
    )

    def step(synthetic: SyntheticPairs, iteration: int) -> dict[str, float]:
        random = generator(context.seed, "trajectory", iteration)
        segment = draw_segment(bank, random, settings.expert_epochs, settings.max_start_epoch, device)
        batches = draw_batches(context.count, settings.inner_batch, settings.inner_steps, random)
        student = FunctionalStudent(
            model, derive(context.seed, "trajectory", "student", iteration), context.student.temperature
        )
        images = _inputs(context.encoded, synthetic.pixels(device), batches)
        targets = similarity(synthetic.extra)
        detached = _DetachedData(images, synthetic.texts, synthetic.extra, targets, device)
        if exact:
            loss = unrolled_loss(student, segment, detached.data, batches)
            loss.backward()
        else:
            loss = stepwise_loss(student, segment, detached.data, batches)
        detached.pass_back()
        synthetic.step(loss.item(), math.inf)
        lrs = {key: synthetic.extra[key] for key in ("student_image_lr", "student_text_lr")}
        for lr in lrs.values():
            lr.data.clamp_(min=SMALLEST_LR)
        return {"loss": loss.item(), **{key: lr.item() for key, lr in lrs.items()}}

    def as_candidate(tensors: Mapping[str, Tensor]) -> Candidate:
        recipe = _learnt_lrs(tensors) if settings.ship_student_lr else {}
        return Candidate(tensors["images"], tensors["texts"], similarity(tensors), recipe)

    chosen = optimise(
        context, synthetic, step, settings.iterations, settings.check_every, as_candidate, patience=settings.patience
    )
    kept = as_candidate(chosen.tensors)
    return finished(
        pairs, context, kept.images, kept.texts, kept.similarity, chosen=chosen.provenance(), student=kept.recipe
    )


def _inputs(encoded: EncodedDataset, pixels: Tensor, batches: Sequence[Tensor]) -> Tensor:
    """What the image tower reads of the images that the student will see; the others are zeros, and not passed."""
    used = torch.cat(list(batches)).unique().to(pixels.device)
    passed = encoded.through_front(pixels[used].contiguous(memory_format=torch.channels_last))
    return passed.new_zeros(len(pixels), *passed.shape[1:]).index_copy(0, used, passed)


def _learnt_lrs(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    return {"lr": tensors["student_image_lr"].item(), "text_lr": tensors["student_text_lr"].item()}


class _DetachedData:
    """What the student trains on, detached from what it was made of; `pass_back` hands its gradients on."""

    def __init__(
        self, images: Tensor, texts: Tensor, extra: Mapping[str, Tensor], targets: Tensor | None, device: torch.device
    ) -> None:
        sources = (images, texts, extra["student_image_lr"], extra["student_text_lr"], targets)
        self._sources = [source for source in sources if source is not None]
        leaves = [None if s is None else s.detach().to(device).requires_grad_(s.requires_grad) for s in sources]
        self._leaves = [leaf for leaf in leaves if leaf is not None]
        image_leaf, text_leaf, image_lr, text_lr = self._leaves[:4]
        self.data = StudentData(image_leaf, text_leaf, image_lr, text_lr, leaves[4])

    def pass_back(self) -> None:
        """From the gradients of the student's data to those of all that is learnt."""
        known = [
            (source, leaf.grad.to(source.device))
            for source, leaf in zip(self._sources, self._leaves, strict=True)
            if leaf.grad is not None
        ]
        torch.autograd.backward([source for source, _ in known], [grad for _, grad in known])
