"""All rows of a study: what is finished is reused, what fails is said, and the table is written after every row."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from rich.markup import escape

from pairstill import api
from pairstill.errors import PairstillError
from pairstill.features.parallel_extraction import extract
from pairstill.features.prepared_folder import PreparedDataset, open_prepared
from pairstill.methods import METHODS
from pairstill.runtime.files import digest_of, locked, read_json, read_manifest, remove, write_json
from pairstill.runtime.launchers import Launcher, Processes, Task
from pairstill.runtime.old_names import under_old_names
from pairstill.runtime.progress import console, duration
from pairstill.studies.figures import write_curves, write_points, write_sizes
from pairstill.studies.job import Job, bytes_of, run_job
from pairstill.studies.study import Entry, Study
from pairstill.studies.tables import write_tables
from pairstill.towers.passes import Passes
from pairstill.towers.two_tower import Towers

P = ParamSpec("P")
R = TypeVar("R")


def compare(
    study: Study,
    out: Path,
    data: str | Path | None = None,
    launcher: Launcher = Processes(),  # noqa: B008 (a frozen value)
    device: api.Device = "auto",
    micro_batch: int | None = None,
) -> list[dict[str, Any]]:
    """Run every row of a study; returns them in the study's order, failed ones with their `error`.

    Args:
        study: What to compare.
        out: Folder of all results; several studies may share it. What is finished there is not done again.
        data: A prepared folder, or a source, in place of the study's.
        launcher: Where rows run, and how many at a time; the default is one, in a process of its own.
        device: Where to compute.
        micro_batch: Images through the network at a time while a set is made.
    """
    Passes(micro_batch)  # what can't be is said before anything long
    plan = _plan(study, out, _data(study, out, data, device), launcher, device)
    todo = [replace(job, micro_batch=micro_batch) for job in plan]
    missing = list({job.key(): job for job in todo if not _is_done(job)}.values())
    if len(missing) < len(todo):
        console.print(f"{len(todo) - len(missing)} of {len(todo)} rows are there already")
    _collect(todo, study, out)  # a folder that can't be written is said before anything long
    _run_all(missing, todo, study, out, launcher)
    records = _collect(todo, study, out)
    made = [record for record in records if "set" in record]
    runs = {out / record["set"] / "run": f"{record['label']}, {record['pairs']}" for record in reversed(made)}
    write_curves(out, study.name, {label: run for run, label in reversed(runs.items())})
    write_points(out, study.name, study.title, records)
    write_sizes(out, study.name, records)
    return records


def _is_done(job: Job) -> bool:
    """Whether a job's result is there; one that was damaged is made again."""
    if not job.result.exists():
        return False
    if isinstance(trouble := _attempt(read_manifest, job.result), PairstillError):
        console.print(f"[yellow]note:[/] {escape(str(trouble))} The row is run again.", soft_wrap=True)
        remove(job.result)
        return False
    return True


def _data(study: Study, out: Path, data: str | Path | None, device: api.Device) -> PreparedDataset:
    """The prepared dataset: a folder that is one, or a source that becomes one in `out`."""
    place = str(data or study.data or "")
    if not place:
        raise PairstillError("the recipe names no data: give --data, a prepared folder or a source.")
    towers = Towers.from_dict(study.towers)
    if (Path(place) / "prepared.json").exists():
        return replace(open_prepared(place), towers=towers)
    with locked(out / "data.lock"):
        return api.prepare(place, out / "data", towers, workers=2, device=device)


def _plan(study: Study, out: Path, data: PreparedDataset, launcher: Launcher, device: api.Device) -> list[Job]:
    """A job for every row, with features and experts at hand; what stands in the way of some rows is their trouble."""
    where: api.Device = "cuda" if api.device_named(device) == "cuda" else "cpu"
    made_of = _reach(data, study.source(), where, launcher)
    reached: dict[Towers, str | PairstillError] = {study.source(): made_of}
    jobs = []
    for entry in study.entries:
        towers = study.towers_of(entry)
        if towers not in reached:
            reached[towers] = _attempt(_reach, data, towers, where, launcher)
        made, read = _attempt(_made_of, data, study, entry, made_of), reached[towers]
        trouble = next((str(found) for found in (made, read) if isinstance(found, Exception)), None)
        made, read = (digest_of(towers.to_dict()) if isinstance(found, Exception) else found for found in (made, read))
        jobs.append(Job(entry, study, data.folder, made, read, None, out, where, trouble))
    wanting = [job for job in jobs if job.needs_bank and job.trouble is None and not _is_done(job)]
    experts = max((job.entry.experts or study.experts for job in wanting), default=0)
    bank = _attempt(_bank, study, out, data, made_of, experts, launcher, device) if experts else None
    if isinstance(bank, PairstillError):
        return [replace(job, trouble=str(bank)) if job in wanting else job for job in jobs]
    return [replace(job, bank=bank) for job in jobs]


def _attempt(do: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | PairstillError:
    try:
        return do(*args, **kwargs)
    except PairstillError as error:
        return error


def _reach(data: PreparedDataset, towers: Towers, device: api.Device, launcher: Launcher) -> str:
    """Compute these towers' features, once and not in every row; returns a digest of dataset, towers and encoders."""
    extract(data, towers, 2, device, launcher)
    encoded = data.encoded(towers, device=device)
    return digest_of([data.dataset.fingerprint, encoded.identity()])


def _made_of(data: PreparedDataset, study: Study, entry: Entry, own: str) -> str:
    """A digest of what a row's set is made with: that of its towers, and the other encoders that its method reads."""
    others = METHODS[entry.method].extra_encoders(entry.all_settings()) if entry.method in METHODS else ()
    return digest_of([own, data.encoded(study.source()).others(others)]) if others else own


def _bank(
    study: Study, out: Path, data: PreparedDataset, made_of: str, experts: int, launcher: Launcher, device: api.Device
) -> Path:
    """The bank that all methods share."""
    folder = out / "banks" / digest_of([made_of, under_old_names(study.expert_recipe), study.seed])
    with locked(folder.with_name(f"{folder.name}.lock")):  # another comparison in `out` may want the same
        api.train_experts(data, folder, experts, study.expert_recipe, study.seed, device, launcher)
    return folder


def _run_all(missing: Sequence[Job], todo: Sequence[Job], study: Study, out: Path, launcher: Launcher) -> None:
    """Run the missing jobs and write the table after each; those whose trouble is known beforehand are not started."""
    jobs = [job for job in missing if not job.trouble]
    for job in missing:
        if job.trouble:
            _write_failure(job, job.trouble)
    begin, works = time.monotonic(), _works(jobs)
    started, done = set[str](), set[str]()

    def start(task: Task) -> None:
        (job,) = task.arguments
        started.add(job.key())
        remove(job.failure)
        console.print(f"[bold]{len(started)}/{len(jobs)}[/] {escape(task.name)}", soft_wrap=True)

    for outcome in launcher.run([Task(_name(job), run_job, (job,), alone=True) for job in jobs], start):
        (job,) = outcome.task.arguments
        done.add(job.key())
        if outcome.error:
            _write_failure(job, outcome.error)
        _collect(todo, study, out)
        left = (time.monotonic() - begin) * _left(works, started, done)
        console.print(f"{len(done)}/{len(jobs)} rows done, about {duration(left)} left", highlight=False)


def _works(jobs: Sequence[Job]) -> dict[str, float]:
    """Roughly how long each job takes, against others, by its key: its students, and so much for every pair in every
    iteration, where its set is not there yet and no row before it makes the same one.
    """
    works, made = dict[str, float](), set[Path]()
    for job in jobs:
        works[job.key()] = 1.0
        for trial in job.trials():
            there = trial.set_folder in made or (trial.set_folder / "distilled.json").exists()
            iterations = 0 if there else getattr(trial.entry.all_settings(), "iterations", 0)
            works[job.key()] += iterations * job.entry.pairs / 1000
            made.add(trial.set_folder)
    return works


def _left(works: Mapping[str, float], started: Set[str], done: Set[str]) -> float:
    """How much work is left for each that was done; of the rows under way half is done and half is left."""
    left = sum(work / (2 if key in started else 1) for key, work in works.items() if key not in done)
    return left / (sum(works.values()) - left)


def _name(job: Job) -> str:
    return f"{job.entry.label}, {job.entry.pairs} pairs" if job.entry.pairs else job.entry.label


def _write_failure(job: Job, reason: str) -> None:
    write_json(job.failure, {"error": reason})
    console.print(f"[red]failed:[/] {escape(f'{job.entry.label}: {reason}')}", soft_wrap=True)


def _collect(todo: Sequence[Job], study: Study, out: Path) -> list[dict[str, Any]]:
    """What there is of the table, written as CSV, JSON and Markdown."""
    records = []
    for job in todo:
        base = {"label": job.entry.label, "method": job.entry.method, "pairs": job.entry.pairs}
        if job.result.exists():
            beside = {"published_mean": study.published_mean(job.entry)}
            found = read_manifest(job.result)
            where = out / found["set"] if "set" in found else job.set_folder
            made = {"set": where.relative_to(out).as_posix(), "bytes": bytes_of(where)} if job.entry.pairs else {}
            records.append({**found, "label": job.entry.label, **beside, **made})
        else:
            why = read_json(job.failure)["error"] if job.failure.exists() else "not run yet"
            records.append({**base, "error": why})
    write_tables(out, study, records)
    return records
