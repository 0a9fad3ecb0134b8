"""Seeds x protocol to one row of a table: mean and standard deviation of the recall of several students."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from rich.markup import escape
from torch import Tensor

from pairstill.data.augmentation import dsa
from pairstill.errors import PairstillError
from pairstill.features.encoded_dataset import EncodedDataset
from pairstill.features.training_pairs import TrainingPairs
from pairstill.runtime.launchers import InProcess, Launcher, Task, in_process_if_one
from pairstill.runtime.progress import console, progress
from pairstill.runtime.seeds import derive
from pairstill.sets.distilled_set import DistilledSet
from pairstill.training.protocols import Protocol
from pairstill.training.recall import Recall
from pairstill.training.student_training import Candidate, Trial, as_training_pairs, learnt_recipe, train_student
from pairstill.training.training_recipe import Recipe, expert_recipe

METRICS = ("ir1", "ir5", "ir10", "tr1", "tr5", "tr10")


@dataclass(frozen=True)
class Result:
    """One row of a results table; recalls are percentages, means over the students."""

    method: str
    pairs: int
    towers: str
    protocol: str
    ir1: float
    ir5: float
    ir10: float
    tr1: float
    tr5: float
    tr10: float
    mean: float
    mean_std: float
    seconds: float
    seeds: int
    split: str

    def to_dict(self) -> dict[str, Any]:
        """For JSON and CSV."""
        return asdict(self)


def evaluate(
    encoded: EncodedDataset,
    distilled: DistilledSet,
    protocol: Protocol,
    seeds: int = 5,
    split: str = "test",
    recipe: Recipe | None = None,
    seed: int = 0,
    launcher: Launcher = InProcess(),  # noqa: B008 (it has no state)
) -> Result:
    """Train `seeds` students on a distilled set and score them on `split`; step sizes that it learnt come first."""
    protocol.check(encoded.towers)
    pairs = distilled_pairs(encoded, distilled, dsa if protocol.augment else None)
    learnt, usual = distilled.info.get("student", {}), protocol.student_recipe(encoded.towers)
    recipe = recipe or usual
    if learnt and (recipe.lr, recipe.text_lr) != (usual.lr, usual.text_lr):
        sizes = f"{learnt.get('lr', recipe.lr):.3g} for images, {learnt.get('text_lr', recipe.lr):.3g} for texts"
        console.print(f"[yellow]note:[/] the set's own step sizes are used ({sizes}), not those of --student")
    recipe = learnt_recipe(recipe, learnt)
    method = str(distilled.info.get("method", "unknown"))
    return _score(encoded, pairs, protocol, recipe, seeds, split, seed, method, len(distilled), launcher)


def distilled_pairs(
    encoded: EncodedDataset, distilled: DistilledSet, augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
) -> TrainingPairs:
    """A distilled set as students of these towers train on it, if they can."""
    check_fits(encoded, distilled)
    candidate = Candidate(as_read_by(encoded, distilled), distilled.texts, distilled.similarity)
    return as_training_pairs(encoded, candidate, augment)


def evaluate_full(
    encoded: EncodedDataset,
    protocol: Protocol,
    seeds: int = 5,
    split: str = "test",
    recipe: Recipe | None = None,
    seed: int = 0,
    launcher: Launcher = InProcess(),  # noqa: B008 (it has no state)
) -> Result:
    """Models trained on all real pairs, with the experts' recipe."""
    protocol.check(encoded.towers)
    links, recipe = encoded.dataset.split("train").links, recipe or expert_recipe(encoded.towers)
    return _score(encoded, None, protocol, recipe, seeds, split, seed, "full", len(links), launcher)


def _score(
    encoded: EncodedDataset,
    pairs: TrainingPairs | None,
    protocol: Protocol,
    recipe: Recipe,
    seeds: int,
    split: str,
    seed: int,
    method: str,
    count: int,
    launcher: Launcher,
) -> Result:
    """A row of students of `pairs`, or of all real ones."""
    if seeds < 1:
        raise PairstillError(f"--seeds must be at least 1, not {seeds}.")
    start = time.monotonic()
    evaluations = 11 if protocol.student == "best-of-11" else 1
    student_seeds = [derive(seed, "student", number) for number in range(seeds)]
    tasks = [
        Task(f"student {number}", _trial, (encoded, pairs, split, student_seed, recipe, evaluations))
        for number, student_seed in enumerate(student_seeds, 1)
    ]
    scores: dict[str, Recall] = {}
    with progress(f"students on {method}", seeds) as advance:
        for outcome in in_process_if_one(launcher).run(tasks):
            scores[outcome.task.name] = reported(outcome.result(), protocol)
            advance(1, note=f"mean recall {scores[outcome.task.name].mean:.1f}")
    seconds = time.monotonic() - start
    in_order = [scores[task.name] for task in tasks]
    return _row(method, count, encoded.towers.describe(), protocol.name, in_order, seconds, split)


def _trial(
    encoded: EncodedDataset, pairs: TrainingPairs | None, split: str, seed: int, recipe: Recipe, evaluations: int
) -> Trial:
    """One student, wherever it is trained."""
    pairs = encoded.split("train", augment=recipe.augment).pairs if pairs is None else pairs
    return train_student(encoded, pairs, encoded.split(split), seed, recipe, evaluations)


def reported(trial: Trial, protocol: Protocol) -> Recall:
    """The recall that the protocol reports of a student."""
    return trial.best if protocol.student == "best-of-11" else trial.last


def _row(
    method: str, pairs: int, towers: str, protocol: str, scores: Sequence[Recall], seconds: float, split: str
) -> Result:
    means = {metric: statistics.fmean(getattr(score, metric) for score in scores) for metric in METRICS}
    totals = [score.mean for score in scores]
    deviation = statistics.stdev(totals) if len(totals) > 1 else 0.0
    return Result(
        method=method,
        pairs=pairs,
        towers=towers,
        protocol=protocol,
        **means,
        mean=statistics.fmean(totals),
        mean_std=deviation,
        seconds=seconds,
        seeds=len(scores),
        split=split,
    )


def as_read_by(encoded: EncodedDataset, distilled: DistilledSet) -> Tensor:
    """The set's pixels in the normalisation of these towers' image encoder, which may not be that of its own."""
    own, wanted = distilled.info.get("normalisation"), encoded.image_encoder
    if own is None or (tuple(own["mean"]), tuple(own["std"])) == (wanted.mean, wanted.std):
        return distilled.images
    mean, std = (torch.tensor(own[key]).reshape(1, 3, 1, 1) for key in ("mean", "std"))
    return wanted.normalise(distilled.images * std + mean)


def with_nearest_captions(encoded: EncodedDataset, distilled: DistilledSet) -> DistilledSet:
    """The set with each text replaced by its nearest real caption, as these towers' text encoder reads it.

    Works for any text encoder, whatever its width; what the distillation learnt beyond that caption is lost.
    """
    wanted = {near[0] for near in distilled.captions}
    rows = {caption: row for row, caption in enumerate(encoded.dataset.captions) if caption in wanted}
    missing = [near[0] for near in distilled.captions if near[0] not in rows]
    if missing:
        raise PairstillError(
            f"the set's nearest caption {missing[0]!r} is not in this dataset: was it made from another?"
        )
    return with_texts(encoded, distilled, encoded.texts[torch.tensor([rows[near[0]] for near in distilled.captions])])


def with_texts(encoded: EncodedDataset, distilled: DistilledSet, texts: Tensor) -> DistilledSet:
    """The set with other texts, which it then says are of these towers' text encoder."""
    own = distilled.info.get("towers", {})
    encoders = {**own.get("encoders", {}), "text": encoded.encoders["text"]}
    towers = {**own, "text": encoded.towers.text, "encoders": encoders}
    return replace(distilled, texts=texts, info={**distilled.info, "towers": towers})


def check_fits(encoded: EncodedDataset, distilled: DistilledSet) -> None:
    """Refuse towers that can't read the set: another text width, or another image size."""
    width, size = distilled.texts.shape[1], distilled.images.shape[-1]
    if width != encoded.text_width:
        raise PairstillError(
            f"the set's texts are {width} wide (encoder {distilled.info.get('towers', {}).get('text')}), and "
            f"{encoded.towers.text} gives {encoded.text_width}. Use the text encoder that the set was made with, or "
            "--texts translated."
        )
    other = distilled.info.get("towers", {}).get("encoders", {}).get("text", encoded.encoders["text"])
    if other != encoded.encoders["text"]:
        theirs, ours = escape(str(distilled.info["towers"]["text"])), escape(encoded.towers.text)
        console.print(
            f"[yellow]note:[/] the set's texts come from {theirs}, and are tested against captions encoded by {ours}: "
            "of the same width, but not of the same space. --texts translated takes them from one to the other.",
            soft_wrap=True,
        )
    if size != encoded.towers.image_size:
        raise PairstillError(
            f"the set's images are {size} px, and these towers read {encoded.towers.image_size} px. "
            f"Use --towers.image-size {size}."
        )
