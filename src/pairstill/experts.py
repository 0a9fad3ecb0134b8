"""Experts: models fine-tuned on the real pairs from one shared anchor, every epoch kept in a bank."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pairstill.bank import Bank, parameters_of
from pairstill.encoded import Encoded
from pairstill.errors import PairstillError
from pairstill.progress import progress
from pairstill.run import Run
from pairstill.seeds import derive
from pairstill.students import model_recall
from pairstill.training import EXPERT_RECIPE, Recipe, train


def train_experts(
    encoded: Encoded, folder: Path, count: int = 20, recipe: Recipe = EXPERT_RECIPE, seed: int = 0
) -> Bank:
    """Train experts until the bank in `folder` has `count` of them; those already there are kept.

    All start from the same anchor, projectors included: with projectors of their own their displacements would
    agree by construction, and the merge ratio would say nothing.
    """
    if count < 1:
        raise PairstillError(f"--count must be at least 1, not {count}.")
    _refuse_other(encoded, folder)
    run = Run(folder / "run", _config(encoded, recipe, seed), resume=True)
    bank = _open_or_create(encoded, folder, recipe, seed)
    bank.forget_unfinished()  # left by a run that was killed between its last two writes
    missing = [expert for expert in range(count) if expert not in bank.experts]
    done = (count - len(missing)) * recipe.epochs + sum(_so_far(bank, expert, recipe)[0] for expert in missing)
    with progress("experts", count * recipe.epochs, done) as advance:
        for expert in missing:
            _train_one(encoded, bank, expert, recipe, seed, run, advance)
    if len(bank.experts) > 1:
        _ = bank.gram  # computed once here, read by every distillation
    return bank


def _refuse_other(encoded: Encoded, folder: Path) -> None:
    """A bank that is there already must be of these towers and data, and trained here."""
    if not (folder / "bank.json").exists():
        return
    bank = Bank.open(folder)
    bank.check(encoded.identity(), encoded.dataset.fingerprint)
    if not (folder / "run" / "run.json").exists():
        raise PairstillError(f"the bank {folder} was imported: experts can't be added to it. Choose another --out.")


def _config(encoded: Encoded, recipe: Recipe, seed: int) -> dict[str, Any]:
    return {
        "towers": encoded.identity(),
        "dataset": encoded.dataset.fingerprint,
        "recipe": dataclasses.asdict(recipe),
        "seed": seed,
    }


def _open_or_create(encoded: Encoded, folder: Path, recipe: Recipe, seed: int) -> Bank:
    if (folder / "bank.json").exists():
        return Bank.open(folder)
    anchor = parameters_of(encoded.new_model(derive(seed, "anchor")))
    settings = {**dataclasses.asdict(recipe), "seed": seed}
    return Bank.create(folder, anchor, encoded.identity(), encoded.dataset.fingerprint, settings)


def _train_one(encoded: Encoded, bank: Bank, expert: int, recipe: Recipe, seed: int, run: Run, advance: Any) -> None:
    begin = time.monotonic()
    model = encoded.new_model(derive(seed, "anchor"))
    done, parameters = _so_far(bank, expert, recipe)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(parameters[name])

    def on_epoch(epoch: int) -> None:
        parameters = parameters_of(model)
        bank.write_epoch(expert, epoch, parameters)
        if epoch < recipe.epochs and _resumes(recipe):
            bank.keep_unfinished(expert, epoch, parameters)
        advance(1, note=f"expert {expert + 1}")

    train(model, encoded.split("train", augment=True).pairs, recipe, derive(seed, "expert", expert), on_epoch, done)
    bank.complete(expert, recipe.epochs)
    scores = model_recall(model, encoded.split("val"))
    run.event("expert", expert=expert, training_seconds=time.monotonic() - begin, val=scores.to_dict())


def _so_far(bank: Bank, expert: int, recipe: Recipe) -> tuple[int, dict[str, Tensor]]:
    """The epochs of an unfinished expert, to go on from."""
    return bank.unfinished(expert) if _resumes(recipe) else (0, bank.anchor)


def _resumes(recipe: Recipe) -> bool:
    """Whether an unfinished expert can go on; not with momentum, which is not kept."""
    return not recipe.momentum
