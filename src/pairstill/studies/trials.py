"""A row's trials: the same method with other settings, of which the best on validation becomes the row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape

from pairstill.errors import PairstillError
from pairstill.runtime.progress import console, duration
from pairstill.runtime.run_folder import read_events
from pairstill.sets.distilled_set import DistilledSet


@dataclass(frozen=True)
class Trial:
    """What came of one trial.

    Attributes:
        changes: The settings that it has besides those of the row.
        made: Its set, or None where it diverged.
        recall: That of the chosen iteration, on the split that the protocol chooses by.
        iterations: How many it went.
        seconds: What it took.
    """

    changes: Mapping[str, Any]
    made: DistilledSet | None
    recall: float
    iterations: int
    seconds: float

    def describe(self) -> str:
        """For example "image_lr 30: 15.2 (80 iterations, 2 min)"."""
        cost = f"{self.iterations} iterations, {duration(self.seconds)}"
        return f"{settings_text(self.changes)}: {f'{self.recall:.1f}' if self.made else 'diverged'} ({cost})"


def settings_text(settings: Mapping[str, Any]) -> str:
    """For example "image_lr 30, momentum 0.9"."""
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "as it is"


def run_trials(
    grid: Sequence[Mapping[str, Any]], distil: Callable[[int], DistilledSet], run_of: Callable[[int], Path]
) -> list[Trial]:
    """Do each trial by its number; one that can't be finished is said and left out of the choice."""
    trials = []
    for number, changes in enumerate(grid):
        trouble, made = "", None
        try:
            made = distil(number)
        except PairstillError as error:
            trouble = f" {error}"
        events = read_events(run_of(number))
        steps = [event for event in events if event["kind"] == "step"]
        recall = made.info["chosen"]["selection_recall"] if made else 0.0
        trials.append(Trial(changes, made, recall, len(steps), events[-1]["seconds"] if events else 0.0))
        console.print(escape(f"trial {number + 1}/{len(grid)}: {trials[-1].describe()}{trouble}"), soft_wrap=True)
    return trials


def best_of(trials: Sequence[Trial]) -> int:
    """The number of the trial with the best recall; the first of those that are equal."""
    finished = [number for number, trial in enumerate(trials) if trial.made is not None]
    if not finished:
        raise PairstillError(f"none of the {len(trials)} trials could be finished: see what each said above.")
    return max(finished, key=lambda number: trials[number].recall)
