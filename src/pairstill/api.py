"""The whole way in four functions: prepare, train_experts, distill, evaluate. The command line is a skin over these."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from pairstill.data.sources import SourceSpec
from pairstill.distillation import runner
from pairstill.distillation.contract import settings_of
from pairstill.errors import PairstillError, unknown
from pairstill.evaluation.scoring import Result, distilled_pairs, evaluate_full
from pairstill.evaluation.scoring import evaluate as score
from pairstill.evaluation.text_adaptation import TextAdaptation, towers_of, with_readable_texts
from pairstill.experts.bank import Bank
from pairstill.experts.expert_training import train_experts as train_into_bank
from pairstill.experts.foreign_buffers import import_buffers
from pairstill.features.encoded_dataset import EncodedDataset
from pairstill.features.parallel_extraction import extract
from pairstill.features.prepared_folder import PreparedDataset, open_prepared
from pairstill.features.prepared_folder import prepare as prepare_folder
from pairstill.methods import method_named
from pairstill.runtime.launchers import InProcess, Launcher
from pairstill.runtime.progress import progress
from pairstill.sets.distilled_set import DistilledSet, load
from pairstill.sets.saved_student import Student
from pairstill.towers.passes import Passes
from pairstill.towers.text_encoder import load_text_encoder
from pairstill.towers.two_tower import Towers
from pairstill.training.protocols import protocol_named
from pairstill.training.student_training import learnt_recipe, model_recall
from pairstill.training.training_loop import train
from pairstill.training.training_recipe import Recipe, RecipeChanges, changed, expert_recipe

Device = Literal["auto", "cpu", "cuda"]
DEFAULT_METHOD = "rehearsal"


def prepare(
    source: str,
    out: str | Path,
    towers: Towers = Towers(),  # noqa: B008 (a frozen value)
    workers: int = 0,
    device: Device = "auto",
    launcher: Launcher = InProcess(),  # noqa: B008 (it has no state)
    **options: Any,
) -> PreparedDataset:
    """Check a dataset and cache its features in `out`. `options` are those of `pairstill.data.sources.SourceSpec`.

    With `workers`, images are decoded in that many processes; a script then needs the usual
    `if __name__ == "__main__":`. With `launcher`, features are computed in several processes or on a cluster.
    """
    prepared, _ = prepare_folder(SourceSpec(source, **options), Path(out), towers, workers)
    extract(prepared, towers, workers, device_named(device), launcher)
    return prepared


def train_experts(
    data: str | Path | PreparedDataset,
    out: str | Path,
    count: int = 20,
    recipe: Recipe | RecipeChanges | None = None,
    seed: int = 0,
    device: Device = "auto",
    launcher: Launcher = InProcess(),  # noqa: B008 (it has no state)
    keep_epochs: Sequence[int] = (),
) -> Bank:
    """Train experts on prepared data until the bank in `out` has `count` of them.

    `recipe` is a whole one, or what differs from the default of the regime. With `launcher`, they train in several
    processes (`Processes`) or on a cluster (`OnRay`). The bank has all epochs of each, or those in `keep_epochs`.
    """
    prepared = data if isinstance(data, PreparedDataset) else open_prepared(data)
    whole = changed(expert_recipe(prepared.towers), recipe)
    return train_into_bank(prepared, Path(out), count, whole, seed, device_named(device), launcher, keep_epochs)


def import_experts(
    data: str | Path | PreparedDataset, out: str | Path, image_buffers: list[str], text_buffers: list[str]
) -> Bank:
    """Make a bank from trajectory buffers (`.pt`) that LoRS or MTT-VL wrote for the same towers."""
    encoded = _encoded(data, None, "cpu")
    return import_buffers(encoded, Path(out), [Path(p) for p in image_buffers], [Path(p) for p in text_buffers])


def distill(
    data: str | Path | PreparedDataset,
    out: str | Path,
    method: str = DEFAULT_METHOD,
    pairs: int = 100,
    bank: str | Path | Bank | None = None,
    protocol: str = "clean",
    settings: Any = None,
    seed: int = 0,
    resume: bool = False,
    device: Device = "auto",
    student: Recipe | RecipeChanges | None = None,
    passes: Passes = Passes(),  # noqa: B008 (a frozen value)
) -> DistilledSet:
    """Distil prepared data into `pairs` pairs, saved in `out`.

    `settings` are the method's own: a mapping of those that differ from its defaults, or an instance of its settings
    class. `student` is how students train, or what differs from the default of protocol and regime. `passes` trade
    time and rounding for memory.
    """
    preset = protocol_named(protocol)
    chosen, opened = method_named(method), Bank.open(Path(bank)) if isinstance(bank, (str, Path)) else bank
    settings = settings_of(chosen, settings) if isinstance(settings, Mapping) else settings
    encoded = _encoded(data, None, device, passes)
    return runner.distill(
        encoded,
        Path(out),
        chosen,
        pairs,
        preset,
        opened,
        settings,
        seed,
        resume,
        changed(preset.student_recipe(encoded.towers), student),
    )


def evaluate(
    distilled: str | Path | DistilledSet | Literal["full"],
    data: str | Path | PreparedDataset,
    protocol: str = "clean",
    seeds: int = 5,
    towers: Mapping[str, Any] | None = None,
    split: str = "test",
    seed: int = 0,
    device: Device = "auto",
    student: Recipe | RecipeChanges | None = None,
    launcher: Launcher = InProcess(),  # noqa: B008 (it has no state)
    texts: TextAdaptation = "as-is",
) -> Result:
    """Train fresh students on a distilled set and score them; "full" trains them on all real pairs instead, as
    experts are trained.

    `student` is how they are trained, or what differs from the default of protocol and regime.
    `towers` names what differs from the towers that the data was prepared for, such as {"image": "nfnet_l0"}; with
    another text encoder than the set's, `texts` says what is read in place of its texts (`TextAdaptation`).
    """
    preset = protocol_named(protocol)
    if distilled == "full":
        encoded = _encoded(data, towers, device)
        recipe = changed(expert_recipe(encoded.towers), student)
        return evaluate_full(encoded, preset, seeds, split, recipe, seed, launcher)
    pairs = distilled if isinstance(distilled, DistilledSet) else load(Path(str(distilled)))
    encoded = _encoded(data, towers, device)
    recipe = changed(preset.student_recipe(encoded.towers), student)
    row = score(encoded, _read_by(encoded, pairs, texts, recipe, seed), preset, seeds, split, recipe, seed, launcher)
    if texts != "as-is":
        row = replace(row, towers=f"{row.towers}, texts {texts}")
    if not isinstance(distilled, DistilledSet):
        _write_down(Path(str(distilled)), row)
    return row


def _read_by(
    encoded: EncodedDataset, made: DistilledSet, texts: TextAdaptation, recipe: Recipe, seed: int
) -> DistilledSet:
    """The set as students of these towers read it."""
    if texts not in get_args(TextAdaptation):
        raise unknown("texts", texts, get_args(TextAdaptation))
    return with_readable_texts(texts, encoded, lambda: encoded.through(towers_of(made)), made, recipe, seed)


def _write_down(folder: Path, row: Result) -> None:
    """Keep a score beside the run that made the set, for the report; a set that came without its run is left alone,
    and so is one in a place that takes no more.
    """
    if (folder / "run").is_dir():
        with contextlib.suppress(OSError), (folder / "run" / "scores.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row.to_dict()) + "\n")


def train_student(
    distilled: str | Path | DistilledSet | Literal["full"],
    data: str | Path | PreparedDataset,
    out: str | Path,
    seed: int = 0,
    device: Device = "auto",
    student: Recipe | RecipeChanges | None = None,
    texts: TextAdaptation = "as-is",
) -> Student:
    """Train one student on a distilled set, or on all real pairs ("full"), take its recall, and save it in `out`.

    The recipe is the students' own, for "full" the experts', unless another is given. Where the data was prepared for
    another text encoder than the set's, `texts` says what is read in place of its texts (`TextAdaptation`).
    """
    folder = Path(out)
    if (folder / "student.json").exists():
        raise PairstillError(f"{folder} already holds a student. Choose another --out.")
    encoded = _encoded(data, None, device)
    info: dict[str, Any] = {"dataset": {"name": encoded.dataset.name, "license": encoded.dataset.license}}
    if distilled == "full":
        recipe = changed(expert_recipe(encoded.towers), student)
        pairs = encoded.split("train", augment=recipe.augment).pairs
    else:
        made = distilled if isinstance(distilled, DistilledSet) else load(Path(str(distilled)))
        recipe = changed(protocol_named("clean").student_recipe(encoded.towers), student)
        pairs = distilled_pairs(encoded, _read_by(encoded, made, texts, recipe, seed))
        recipe = learnt_recipe(recipe, made.info.get("student", {}))
        info = {**made.info, "pairs": len(made)}
    model = encoded.new_model(seed)
    with progress("student", recipe.epochs) as advance:
        train(model, pairs, recipe, seed, lambda epoch: advance(1))
    score = {**model_recall(model, encoded.split("test")).to_dict(), "split": "test"}
    text_encoder = load_text_encoder(encoded.towers.text, encoded.towers.text_pooling).to(encoded.device)
    kept = Student(encoded.towers, model.eval(), encoded.image_encoder, text_encoder, info, score, encoded.device)
    kept.save(folder)
    return kept


def _encoded(
    data: str | Path | PreparedDataset,
    changes: Mapping[str, Any] | None,
    device: Device,
    passes: Passes = Passes(),  # noqa: B008 (a frozen value)
) -> EncodedDataset:
    prepared = data if isinstance(data, PreparedDataset) else open_prepared(data)
    towers = Towers.from_dict({**prepared.towers.to_dict(), **(changes or {})})
    return prepared.encoded(towers, device=device_named(device), passes=passes)


def device_named(wanted: Device) -> str:
    """`auto` is the GPU where there is one."""
    import torch

    if wanted not in ("auto", "cpu", "cuda"):
        raise unknown("device", wanted, ("auto", "cpu", "cuda"))
    if wanted == "cuda" and not torch.cuda.is_available():
        raise PairstillError(
            "--device cuda: torch finds no GPU here. Use --device cpu, or install a CUDA build of torch."
        )
    return "cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu"
