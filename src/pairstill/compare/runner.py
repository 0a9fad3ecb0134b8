"""All rows of a study: what is finished is reused, what fails is said, and the table is written after every row."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from rich.markup import escape

from pairstill import api
from pairstill.compare.figures import write_curves, write_points, write_sizes
from pairstill.compare.job import Job, bytes_of, run_job
from pairstill.compare.study import Study, settings_of
from pairstill.compare.tables import write_tables
from pairstill.errors import PairstillError
from pairstill.files import digest_of, read_json, write_json
from pairstill.methods import METHODS
from pairstill.prepared import Prepared, open_prepared
from pairstill.progress import console, duration
from pairstill.towers import Towers

SECONDS_BETWEEN_LOOKS = 0.2

P = ParamSpec("P")
R = TypeVar("R")


def compare(
    study: Study,
    out: Path,
    data: str | Path | None = None,
    jobs: int = 1,
    device: api.Device = "auto",
) -> list[dict[str, Any]]:
    """Run every row of a study; returns them in the study's order, failed ones with their `error`.

    Args:
        study: What to compare.
        out: Folder of all results; several studies may share it. What is finished there is not done again.
        data: A prepared folder, or a source, in place of the study's.
        jobs: Rows at a time, each in a process of its own.
        device: Where to compute.
    """
    if jobs < 1:
        raise PairstillError(f"--jobs must be at least 1, not {jobs}.")
    todo = _plan(study, out, _data(study, out, data, device), jobs, device)
    missing = list({job.key(): job for job in todo if not job.result.exists()}.values())
    if len(missing) < len(todo):
        console.print(f"{len(todo) - len(missing)} of {len(todo)} rows are there already")
    _run_all(missing, todo, study, out, jobs)
    runs = {job.set_folder / "run": f"{job.entry.label}, {job.entry.pairs}" for job in reversed(todo)}
    write_curves(out, study.name, {label: run for run, label in reversed(runs.items())})
    records = _collect(todo, study, out)
    write_points(out, study.name, study.title, records)
    write_sizes(out, study.name, records)
    return records


def _data(study: Study, out: Path, data: str | Path | None, device: api.Device) -> Prepared:
    """The prepared dataset: a folder that is one, or a source that becomes one in `out`."""
    place = str(data or study.data or "")
    if not place:
        raise PairstillError("the recipe names no data: give --data, a prepared folder or a source.")
    towers = Towers.from_dict(study.towers)
    if (Path(place) / "prepared.json").exists():
        return replace(open_prepared(place), towers=towers)
    return api.prepare(place, out / "data", towers, workers=2, device=device)


def _plan(study: Study, out: Path, data: Prepared, at_once: int, device: api.Device) -> list[Job]:
    """A job for every row, with features and experts at hand; what stands in the way of some rows is their trouble."""
    import torch

    where: api.Device = "cuda" if api.device_named(device) == "cuda" else "cpu"
    threads = max(1, torch.get_num_threads() // at_once) if at_once > 1 else None
    made_of = _reach(data, study.source(), where)
    reached: dict[Towers, str | PairstillError] = {study.source(): made_of}
    jobs = []
    for entry in study.entries:
        towers = study.towers_of(entry)
        if towers not in reached:
            reached[towers] = _attempt(_reach, data, towers, where)
        found = reached[towers]
        read_by, trouble = (digest_of(towers.to_dict()), str(found)) if isinstance(found, Exception) else (found, None)
        jobs.append(Job(entry, study, data.folder, made_of, read_by, None, out, where, threads, trouble))
    wanting = [job for job in jobs if job.needs_bank and job.trouble is None]
    experts = max((job.entry.experts or study.experts for job in wanting), default=0)
    bank = _attempt(_bank, study, out, data, made_of, experts, device) if experts else None
    if isinstance(bank, PairstillError):
        return [replace(job, trouble=str(bank)) if job in wanting else job for job in jobs]
    return [replace(job, bank=bank) for job in jobs]


def _attempt(do: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | PairstillError:
    try:
        return do(*args, **kwargs)
    except PairstillError as error:
        return error


def _reach(data: Prepared, towers: Towers, device: api.Device) -> str:
    """Compute these towers' features, once and not in every row; returns a digest of dataset, towers and encoders."""
    encoded = data.encoded(towers, workers=2, device=device)
    api.cache_features(encoded)
    return digest_of([data.dataset.fingerprint, encoded.identity()])


def _bank(study: Study, out: Path, data: Prepared, made_of: str, experts: int, device: api.Device) -> Path:
    """The bank that all methods share."""
    folder = out / "banks" / digest_of([made_of, asdict(study.expert), study.seed])
    api.train_experts(data, folder, experts, study.expert, study.seed, device)
    return folder


def _run_all(missing: Sequence[Job], todo: Sequence[Job], study: Study, out: Path, at_once: int) -> None:
    """Run the missing jobs, `at_once` at a time; stop them all, resumable, when this process is stopped."""
    waiting, running = [job for job in missing if not job.trouble], dict[int, tuple[BaseProcess, Job]]()
    for job in missing:
        if job.trouble:
            _write_failure(job, job.trouble)
    spawn, begin, count, done = multiprocessing.get_context("spawn"), time.monotonic(), len(waiting), list[Job]()
    works = _works(waiting)
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                job.failure.unlink(missing_ok=True)
                process: BaseProcess = spawn.Process(target=run_job, args=(job,))
                process.start()
                running[process.pid or 0] = process, job
                _say(job, count - len(waiting), count)
            time.sleep(SECONDS_BETWEEN_LOOKS)
            for pid, (process, job) in list(running.items()):
                if not process.is_alive():
                    del running[pid]
                    done.append(job)
                    _finish(process, job)
                    _collect(todo, study, out)
                    rest = sum(works[job.key()] for job in waiting)
                    rest += sum(works[job.key()] for _, job in running.values()) / 2
                    left = (time.monotonic() - begin) * rest / sum(works[job.key()] for job in done)
                    console.print(f"{len(done)}/{count} rows done, about {duration(left)} left", highlight=False)
    finally:  # whatever ended the loop: each row that still runs saves its state and ends
        for process, _ in running.values():
            if process.is_alive() and process.pid:
                os.kill(process.pid, signal.SIGINT)
        for process, _ in running.values():
            process.join()


def _works(jobs: Sequence[Job]) -> dict[str, float]:
    """Roughly how long each job takes, against others, by its key: its students, and so much for every pair in every
    iteration, where its set is not there yet and no row before it makes the same one.
    """
    works, made = dict[str, float](), set[Path]()
    for job in jobs:
        settings = settings_of(job.entry.method, job.entry.settings) if job.entry.method in METHODS else None
        there = job.set_folder in made or (job.set_folder / "distilled.json").exists()
        works[job.key()] = 1 + (0 if there else getattr(settings, "iterations", 0) * job.entry.pairs / 1000)
        made.add(job.set_folder)
    return works


def _say(job: Job, number: int, count: int) -> None:
    budget = f", {job.entry.pairs} pairs" if job.entry.pairs else ""
    console.print(f"[bold]{number}/{count}[/] {escape(job.entry.label)}{budget}", soft_wrap=True)


def _finish(process: BaseProcess, job: Job) -> None:
    """Write down why a job left no result, if it could not do so itself."""
    if job.result.exists():
        return
    if process.exitcode == 130:
        raise KeyboardInterrupt
    if job.failure.exists():
        return _say_failure(job, read_json(job.failure)["error"])
    killed = process.exitcode is not None and process.exitcode < 0
    how = f"was killed by signal {-(process.exitcode or 0)}" if killed else f"ended with code {process.exitcode}"
    hint = " (out of memory?)" if process.exitcode == -9 else ""
    _write_failure(job, f"its process {how}{hint}")


def _write_failure(job: Job, reason: str) -> None:
    write_json(job.failure, {"error": reason})
    _say_failure(job, reason)


def _say_failure(job: Job, reason: str) -> None:
    console.print(f"[red]failed:[/] {escape(f'{job.entry.label}: {reason}')}", soft_wrap=True)


def _collect(todo: Sequence[Job], study: Study, out: Path) -> list[dict[str, Any]]:
    """What there is of the table, written as CSV, JSON and Markdown."""
    records = []
    for job in todo:
        base = {"label": job.entry.label, "method": job.entry.method, "pairs": job.entry.pairs}
        if job.result.exists():
            beside = {"published_mean": study.published_mean(job.entry)}
            where = job.set_folder
            made = {"set": where.relative_to(out).as_posix(), "bytes": bytes_of(where)} if job.entry.pairs else {}
            records.append({**read_json(job.result), "label": job.entry.label, **beside, **made})
        else:
            why = read_json(job.failure)["error"] if job.failure.exists() else "not run yet"
            records.append({**base, "error": why})
    write_tables(out, study, records)
    return records
