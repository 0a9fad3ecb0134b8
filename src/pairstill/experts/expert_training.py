"""Experts: models fine-tuned on the real pairs from one shared anchor, every epoch kept in a bank."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from pairstill.errors import PairstillError
from pairstill.experts.bank import Bank, parameters_of
from pairstill.features.encoded_dataset import EncodedDataset
from pairstill.features.prepared_folder import PreparedDataset
from pairstill.runtime.files import held_alone
from pairstill.runtime.launchers import InProcess, Launcher, Task, in_process_if_one
from pairstill.runtime.old_names import with_added
from pairstill.runtime.progress import progress
from pairstill.runtime.run_folder import Run
from pairstill.runtime.seeds import derive
from pairstill.training.student_training import model_recall
from pairstill.training.training_loop import train
from pairstill.training.training_recipe import Recipe, expert_recipe

SECONDS_BETWEEN_LOOKS = 1.0


def train_experts(
    data: PreparedDataset,
    folder: Path,
    count: int = 20,
    recipe: Recipe | None = None,
    seed: int = 0,
    device: str = "cpu",
    launcher: Launcher = InProcess(),  # noqa: B008 (it has no state)
    keep_epochs: Sequence[int] = (),
) -> Bank:
    """Train experts until the bank in `folder` has `count` of them; those already there are kept.

    Of each, the bank has the epochs in `keep_epochs`, counted from 1, or all of them.

    All start from the same anchor, projectors included: with projectors of their own their displacements would
    agree by construction, and the merge ratio would say nothing.
    """
    if count < 1:
        raise PairstillError(f"--count must be at least 1, not {count}.")
    encoded = _opened(data, device)
    recipe = recipe or expert_recipe(encoded.towers)
    kept = _kept_epochs(keep_epochs, recipe)
    _refuse_other(encoded, folder)
    with held_alone(folder / "run"):
        run = Run(folder / "run", _config(encoded, recipe, seed, keep_epochs), resume=True, read_config=_with_added)
        bank = _open_or_create(encoded, folder, recipe, seed)
        bank.forget_unfinished()  # left by a run that was killed between its last two writes
        missing = [expert for expert in range(count) if expert not in bank.experts]
        if missing:
            encoded.split("train")  # what experts read is computed once, not in every worker
            _train_all(data, bank, missing, recipe, kept, seed, device, run, launcher)
        if len(bank.experts) > 1:
            _ = bank.gram  # computed once here, read by every distillation
        return bank


def _opened(data: PreparedDataset, device: str) -> EncodedDataset:
    """The dataset through its towers; the last one stays open, for the next expert of the same process."""
    key = (data.folder.absolute(), data.dataset.fingerprint, data.towers, device)
    if key not in _OPEN:
        _OPEN.clear()
        _OPEN[key] = data.encoded(device=device)
    return _OPEN[key]


_OPEN: dict[Any, EncodedDataset] = {}


def _refuse_other(encoded: EncodedDataset, folder: Path) -> None:
    """A bank that is there already must be of these towers and data, and trained here."""
    if not (folder / "bank.json").exists():
        return
    bank = Bank.open(folder)
    bank.check(encoded.identity(), encoded.dataset.fingerprint)
    if not (folder / "run" / "run.json").exists():
        raise PairstillError(f"the bank {folder} was imported: experts can't be added to it. Choose another --out.")


def _kept_epochs(wanted: Sequence[int], recipe: Recipe) -> list[int]:
    """Which epochs go into the bank: those that were asked for, or all."""
    if wrong := [epoch for epoch in wanted if not 1 <= epoch <= recipe.epochs]:
        raise PairstillError(f"--keep-epochs are from 1 to {recipe.epochs}, not {wrong[0]}.")
    return sorted(set(wanted)) or list(range(1, recipe.epochs + 1))


def _config(encoded: EncodedDataset, recipe: Recipe, seed: int, keep_epochs: Sequence[int]) -> dict[str, Any]:
    return {
        **({"keep_epochs": sorted(set(keep_epochs))} if keep_epochs else {}),
        "towers": encoded.identity(),
        "dataset": encoded.dataset.fingerprint,
        "recipe": dataclasses.asdict(recipe),
        "seed": seed,
    }


def _with_added(config: dict[str, Any]) -> dict[str, Any]:
    """The config of a bank that an older version may have begun."""
    return {**config, "recipe": with_added(Recipe, config.get("recipe", {}))}


def _open_or_create(encoded: EncodedDataset, folder: Path, recipe: Recipe, seed: int) -> Bank:
    if (folder / "bank.json").exists():
        return Bank.open(folder)
    anchor = parameters_of(encoded.new_model(derive(seed, "anchor")))
    settings = {**dataclasses.asdict(recipe), "seed": seed}
    return Bank.create(folder, anchor, encoded.identity(), encoded.dataset.fingerprint, settings)


def _train_all(
    data: PreparedDataset,
    bank: Bank,
    missing: Sequence[int],
    recipe: Recipe,
    kept: Sequence[int],
    seed: int,
    device: str,
    run: Run,
    launcher: Launcher,
) -> None:
    tasks = [Task(f"expert {n + 1}", _train_one, (data, bank.folder, n, recipe, kept, seed, device)) for n in missing]
    with _epochs_counted(bank, missing, kept):
        for outcome in in_process_if_one(launcher).run(tasks):
            found = outcome.result("Finished experts and epochs are kept.")
            bank.complete(found["expert"], kept)
            run.event("expert", **found)


@contextlib.contextmanager
def _epochs_counted(bank: Bank, missing: Sequence[int], kept: Sequence[int]) -> Iterator[None]:
    """Progress by the epochs that come to be on disk, whoever trains them."""
    done, stop = bank.epochs_on_disk(missing), threading.Event()
    with progress("experts, epochs", len(missing) * len(kept), done) as advance:

        def look() -> None:
            seen = done
            while True:
                stopped = stop.wait(SECONDS_BETWEEN_LOOKS)
                if (now := bank.epochs_on_disk(missing)) > seen:
                    advance(now - seen)
                    seen = now
                if stopped:
                    return

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()


def _train_one(
    data: PreparedDataset, folder: Path, expert: int, recipe: Recipe, kept: Sequence[int], seed: int, device: str
) -> dict[str, Any]:
    """Train one expert, from its last epoch on disk; its epochs are in the bank's folder, its scores are returned."""
    begin = time.monotonic()
    encoded, bank = _opened(data, device), Bank.open(folder)
    model = encoded.new_model(derive(seed, "anchor"))
    done, parameters, velocity = bank.unfinished(expert)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(parameters[name])

    def on_epoch(epoch: int) -> None:
        parameters = parameters_of(model)
        if epoch in kept:
            bank.write_epoch(expert, epoch, parameters)
        bank.keep_unfinished(expert, epoch, parameters, velocity)

    train(
        model,
        encoded.split("train", augment=recipe.augment).pairs,
        recipe,
        derive(seed, "expert", expert),
        on_epoch,
        done,
        velocity,
    )
    scores = model_recall(model, encoded.split("val"))
    return {"expert": expert, "training_seconds": time.monotonic() - begin, "val": scores.to_dict()}
