"""Progress for people: a bar on a terminal, a line now and then in a log; always with rate and time left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

console = Console(stderr=True, highlight=False, emoji=False)
"""Everything that is not a result goes to standard error, so that `--json` output can be piped."""

SECONDS_BETWEEN_LINES = 15.0

Advance = Callable[..., None]
"""`advance(steps=1, note="")`: so many steps are done; the note is shown beside the bar."""


@contextlib.contextmanager
def progress(label: str, total: int, done: int = 0) -> Iterator[Advance]:
    """Show progress of `total` steps, `done` of which were finished before (a resumed run)."""
    with _bar(label, total, done) if console.is_terminal else _lines(label, total, done) as advance:
        yield advance


@contextlib.contextmanager
def _bar(label: str, total: int, done: int) -> Iterator[Advance]:
    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", style="dim"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(label, total=total, completed=done, note="")

        def advance(steps: int = 1, note: str = "") -> None:
            bar.update(task, advance=steps)
            if note:
                bar.update(task, note=note)

        yield advance


@contextlib.contextmanager
def _lines(label: str, total: int, done: int) -> Iterator[Advance]:
    start = last = time.monotonic()
    before, note_shown = done, ""

    def advance(steps: int = 1, note: str = "") -> None:
        nonlocal done, last, note_shown
        done, note_shown = done + steps, note or note_shown
        now = time.monotonic()
        if now - last < SECONDS_BETWEEN_LINES or done >= total:
            return
        last = now
        rate = (done - before) / (now - start)
        left = duration((total - done) / rate) if rate > 0 else "?"
        console.print(f"{label}: {done}/{total}, {rate:.3g}/s, {left} left {note_shown}".rstrip(), soft_wrap=True)

    yield advance
    took = duration(time.monotonic() - start)
    console.print(f"{label}: {done}/{total} in {took} {note_shown}".rstrip(), soft_wrap=True)


def duration(seconds: float) -> str:
    """Seconds as a person says them: 42 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
