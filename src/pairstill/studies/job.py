"""One row of a comparison: distil and score, in a process of its own, leaving one JSON file."""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pairstill.api import Device
from pairstill.distillation.runner import distill
from pairstill.evaluation.scoring import Result, evaluate, evaluate_full
from pairstill.evaluation.text_adaptation import with_readable_texts
from pairstill.experts.bank import Bank
from pairstill.features.encoded_dataset import EncodedDataset
from pairstill.features.prepared_folder import open_prepared
from pairstill.methods import METHODS
from pairstill.runtime.files import digest_of, locked, remove, write_manifest
from pairstill.runtime.memory import peak_mib
from pairstill.runtime.old_names import under_old_names
from pairstill.runtime.run_folder import read_events
from pairstill.sets.distilled_set import DistilledSet
from pairstill.studies.study import Entry, Study
from pairstill.studies.trials import best_of, run_trials, settings_text
from pairstill.towers.passes import Passes
from pairstill.training.protocols import protocol_named


@dataclass(frozen=True)
class Job:
    """One entry of a study, and where its inputs and results are.

    Attributes:
        entry: The row.
        study: The study that it belongs to.
        data: The prepared dataset's folder.
        made_of: A digest of the dataset, and of the towers and encoders that sets are made with.
        read_by: A digest of the students' towers and encoders.
        bank: The bank's folder, or None where no method needs one.
        out: Folder of the comparison.
        device: Where to compute.
        trouble: Why the job can't be done, where that is known beforehand.
        micro_batch: Images through the network at a time while a set is made; rounding is all that depends on it.
    """

    entry: Entry
    study: Study
    data: Path
    made_of: str
    read_by: str
    bank: Path | None
    out: Path
    device: Device = "cpu"
    trouble: str | None = None
    micro_batch: int | None = None

    def set_key(self) -> str:
        """A digest of all that the distilled set depends on."""
        entry, study = self.entry, self.study
        if entry.grid:
            return digest_of([trial.set_key() for trial in self.trials()])
        experts = [entry.experts or study.experts, study.expert_recipe] if self.needs_bank else None
        student = None if entry.method == "full" else study.student_recipe
        protocol = protocol_named(study.protocol).key(study.source())
        parts = [entry.method, entry.pairs, entry.all_settings(), experts, protocol, student, study.seed]
        return digest_of([self.made_of, *(_plain(part) for part in parts)])

    def key(self) -> str:
        """A digest of all that the row depends on."""
        entry, study = self.entry, self.study
        expert = study.expert_recipe if entry.method == "full" else None
        return digest_of([self.set_key(), self.read_by, entry.texts, study.seeds, _plain(expert)])

    def trials(self) -> list[Job]:
        """A job for each trial of the row; itself where it has no grid."""
        return [replace(self, entry=entry) for entry in self.entry.trials()]

    @property
    def needs_bank(self) -> bool:
        """Whether its method reads experts."""
        return self.entry.method in METHODS and METHODS[self.entry.method].needs_bank

    @property
    def set_folder(self) -> Path:
        """Where the distilled set is; with a grid each trial has its own."""
        return self.out / "sets" / f"{_safe(self.entry.method)}-{self.entry.pairs}-{self.set_key()[:10]}"

    @property
    def result(self) -> Path:
        """The row, once it is done."""
        return self.out / "rows" / f"{self.key()}.json"

    @property
    def failure(self) -> Path:
        """Why it failed, if it did."""
        return self.out / "rows" / f"{self.key()}.failed.json"


def run_job(job: Job) -> None:
    """Do a job and leave its result in a file."""
    write_manifest(job.result, _do(job))
    remove(job.failure)


def _do(job: Job) -> dict[str, Any]:
    entry, study = job.entry, job.study
    data, protocol, passes = open_prepared(job.data), protocol_named(study.protocol), Passes(job.micro_batch)
    encoded = data.encoded(study.towers_of(entry), device=job.device, passes=passes)
    if entry.method == "full":
        row = evaluate_full(encoded, protocol, study.seeds, recipe=study.expert_recipe, seed=study.seed)
        return _record(job, row, {"peak_mib": peak_mib()})
    same = study.towers_of(entry) == study.source()
    source = encoded if same else data.encoded(study.source(), device=job.device, passes=passes)
    bank = Bank.open(job.bank).first(entry.experts or study.experts) if job.bank and job.needs_bank else None
    trial, tried = _chosen_trial(job, source, bank)
    made = _distil(trial, source, bank)
    read = with_readable_texts(entry.texts, encoded, lambda: source, made, study.student_recipe, study.seed)
    row = evaluate(encoded, read, protocol, study.seeds, recipe=study.student_recipe, seed=study.seed)
    cost = cost_of(trial.set_folder / "run", made)
    return _record(job, row, {**tried, **cost, **(cost_of_bank(bank) if bank else {})})


def _chosen_trial(job: Job, source: EncodedDataset, bank: Bank | None) -> tuple[Job, dict[str, Any]]:
    """The trial that becomes the row, and what the table says of all of them."""
    if not job.entry.grid:
        return job, {}
    jobs = job.trials()
    trials = run_trials(job.entry.grid, lambda n: _distil(jobs[n], source, bank), lambda n: jobs[n].set_folder / "run")
    best = best_of(trials)
    said = {"chosen_settings": settings_text(job.entry.grid[best]), "trials": "; ".join(t.describe() for t in trials)}
    folder = jobs[best].set_folder.relative_to(job.out).as_posix()
    return jobs[best], {**said, "trial_seconds": sum(trial.seconds for trial in trials), "set": folder}


def _distil(job: Job, encoded: EncodedDataset, bank: Bank | None) -> DistilledSet:
    entry, study = job.entry, job.study
    with locked(job.set_folder.with_name(f"{job.set_folder.name}.lock")):  # rows may share a set
        return distill(
            encoded,
            job.set_folder,
            METHODS[entry.method],
            entry.pairs,
            protocol_named(study.protocol),
            bank,
            entry.all_settings(),
            study.seed,
            resume=True,
            student=study.student_recipe,
        )


def cost_of(run: Path, made: DistilledSet) -> dict[str, Any]:
    """What the distillation took, from its events: seconds, iterations till the chosen one, memory.

    The set may have been made long ago by another process: what this one holds says nothing of it.
    """
    events = read_events(run)
    steps = [event["seconds"] for event in events if event["kind"] == "step"]
    chosen = made.info.get("chosen", {}).get("iteration")
    at_best = [event["seconds"] for event in events if event["kind"] == "step" and event["iteration"] == chosen]
    return {
        "distil_seconds": events[-1]["seconds"] if events else 0.0,
        "seconds_per_iteration": seconds_per_iteration(steps),
        "iterations": len(steps) or None,
        "iterations_till_best": chosen,
        "seconds_till_best": at_best[0] if at_best else None,
        "peak_mib": next((event.get("peak_mib") for event in events if event["kind"] == "done"), None),
    }


def seconds_per_iteration(steps: list[float]) -> float | None:
    """The median of what two iterations after one another take, halved: a method may have two kinds by turns, and no
    check or pause between some of them counts.
    """
    if len(steps) < 3:
        return steps[1] - steps[0] if len(steps) == 2 else None
    return statistics.median((b - a) / 2 for a, b in zip(steps, steps[2:], strict=False))


def bytes_of(folder: Path) -> int | None:
    """What a set weighs to share: images in 8 bits, texts and similarity in 16; they are kept in 32."""
    shrink = {"images": 4, "texts": 2, "similarity": 2}
    files = {name: folder / f"{name}.safetensors" for name in shrink}
    return sum(file.stat().st_size // shrink[name] for name, file in files.items() if file.exists()) or None


def cost_of_bank(bank: Bank) -> dict[str, Any]:
    """What its experts took to train, and their size on disk."""
    spent = {e["expert"]: e["training_seconds"] for e in read_events(bank.folder / "run") if e["kind"] == "expert"}
    files = [bank.folder / checkpoint.file for checkpoint in bank.checkpoints]
    return {
        "expert_seconds": sum(spent.get(expert, 0.0) for expert in bank.experts),
        "bank_mib": sum(file.stat().st_size for file in files) / 2**20,
    }


def _record(job: Job, row: Result, cost: dict[str, Any]) -> dict[str, Any]:
    return {"label": job.entry.label, "texts": job.entry.texts, **row.to_dict(), **cost}


def _safe(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)


def _plain(value: Any) -> Any:
    """A part of a key; settings under their first names, so that renaming one leaves all keys as they were."""
    return under_old_names(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
