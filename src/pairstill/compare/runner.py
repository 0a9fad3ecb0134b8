"""All rows of a study: what is finished is reused, what fails is said, and the table is written after every row."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rich.markup import escape

from pairstill import api
from pairstill.compare.figures import write_curves
from pairstill.compare.job import Job, run_job
from pairstill.compare.study import Study
from pairstill.compare.tables import write_tables
from pairstill.errors import PairstillError
from pairstill.files import digest_of, read_json, write_json
from pairstill.methods import METHODS
from pairstill.prepared import Prepared, open_prepared
from pairstill.progress import console, duration
from pairstill.towers import Towers

SECONDS_BETWEEN_LOOKS = 0.2


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
    prepared = _data(study, out, data, device)
    bank = _bank(study, out, prepared, device)
    threads = max(1, (os.cpu_count() or 1) // jobs) if jobs > 1 else None
    where: api.Device = "cuda" if api.device_named(device) == "cuda" else "cpu"
    fingerprint = prepared.dataset.fingerprint
    todo = [Job(entry, study, prepared.folder, fingerprint, bank, out, where, threads) for entry in study.entries]
    missing = list({job.key(): job for job in todo if not job.result.exists()}.values())
    if len(missing) < len(todo):
        console.print(f"{len(todo) - len(missing)} of {len(todo)} rows are there already")
    _run_all(missing, todo, study, out, jobs)
    runs = {job.set_folder / "run": f"{job.entry.label}, {job.entry.pairs}" for job in reversed(todo)}
    write_curves(out, study.name, {label: run for run, label in reversed(runs.items())})
    return _collect(todo, study, out)


def _data(study: Study, out: Path, data: str | Path | None, device: api.Device) -> Prepared:
    """The prepared dataset: a folder that is one, or a source that becomes one in `out`."""
    place = str(data or study.data or "")
    if not place:
        raise PairstillError("the recipe names no data: give --data, a prepared folder or a source.")
    towers = Towers.from_dict(study.towers)
    if (Path(place) / "prepared.json").exists():
        prepared = replace(open_prepared(place), towers=towers)
        api.cache_features(prepared.encoded(workers=2, device=api.device_named(device)))  # once, not in every row
        return prepared
    return api.prepare(place, out / "data", towers, workers=2, device=device)


def _bank(study: Study, out: Path, data: Prepared, device: api.Device) -> Path | None:
    """The bank that all methods share, with as many experts as any row wants."""
    counts = [e.experts or study.experts for e in study.entries if e.method in METHODS and METHODS[e.method].needs_bank]
    if not counts:
        return None
    parts = [data.dataset.fingerprint, data.towers.to_dict(), asdict(study.expert), study.seed]
    folder = out / "banks" / digest_of(parts)
    api.train_experts(data, folder, max(counts), study.expert, study.seed, device)
    return folder


def _run_all(missing: Sequence[Job], todo: Sequence[Job], study: Study, out: Path, at_once: int) -> None:
    """Run the missing jobs, `at_once` at a time; stop them all, resumable, when this process is stopped."""
    waiting, running = list(missing), dict[int, tuple[BaseProcess, Job]]()
    spawn, begin, done = multiprocessing.get_context("spawn"), time.monotonic(), 0
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                job.failure.unlink(missing_ok=True)
                process: BaseProcess = spawn.Process(target=run_job, args=(job,))
                process.start()
                running[process.pid or 0] = process, job
                _say(job, len(missing) - len(waiting), len(missing))
            time.sleep(SECONDS_BETWEEN_LOOKS)
            for pid, (process, job) in list(running.items()):
                if not process.is_alive():
                    del running[pid]
                    done += 1
                    _finish(process, job)
                    _collect(todo, study, out)
                    left = (time.monotonic() - begin) / done * (len(missing) - done)
                    console.print(f"{done}/{len(missing)} rows done, about {duration(left)} left", highlight=False)
    finally:  # whatever ended the loop: each row that still runs saves its state and ends
        for process, _ in running.values():
            if process.is_alive() and process.pid:
                os.kill(process.pid, signal.SIGINT)
        for process, _ in running.values():
            process.join()


def _say(job: Job, number: int, count: int) -> None:
    budget = f", {job.entry.pairs} pairs" if job.entry.pairs else ""
    console.print(f"[bold]{number}/{count}[/] {escape(job.entry.label)}{budget}", soft_wrap=True)


def _finish(process: BaseProcess, job: Job) -> None:
    """Write down why a job left no result, if it could not do so itself."""
    if job.result.exists():
        return
    if process.exitcode == 130:
        raise KeyboardInterrupt
    if not job.failure.exists():
        killed = process.exitcode is not None and process.exitcode < 0
        how = f"was killed by signal {-(process.exitcode or 0)}" if killed else f"ended with code {process.exitcode}"
        hint = " (out of memory?)" if process.exitcode == -9 else ""
        write_json(job.failure, {"error": f"its process {how}{hint}"})
    reason = escape(f"{job.entry.label}: {read_json(job.failure)['error']}")
    console.print(f"[red]failed:[/] {reason}", soft_wrap=True)


def _collect(todo: Sequence[Job], study: Study, out: Path) -> list[dict[str, Any]]:
    """What there is of the table, written as CSV, JSON and Markdown."""
    records = []
    for job in todo:
        base = {"label": job.entry.label, "method": job.entry.method, "pairs": job.entry.pairs}
        if job.result.exists():
            records.append({**read_json(job.result), "label": job.entry.label})
        elif job.failure.exists():
            records.append({**base, "error": read_json(job.failure)["error"]})
        else:
            records.append({**base, "error": "not run yet"})
    write_tables(out, study, records)
    return records
