"""A set together with the run that made it, as far as they are there: its events, scores and initial pairs."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pairstill.runtime.files import read_json
from pairstill.runtime.run_folder import read_events
from pairstill.sets.distilled_set import DistilledSet, load
from pairstill.sets.initial_record import InitialPairs, read_initial_pairs

Record = dict[str, Any]
DIAGNOSTICS = "diagnostics.json"
OLD_DIAGNOSTICS = "anatomy.json"


@dataclass(frozen=True)
class RunRecord:
    """A distillation, finished or not.

    Attributes:
        name: What it is called on the page.
        folder: Of the set; its run is in `folder/run`.
        config: What was asked for; empty for a set that came without its run.
        versions: Of what made it.
        events: What happened.
        diagnostics: Cosines and merge ratios at the end, if the method wrote them.
    """

    name: str
    folder: Path
    config: Record
    versions: Record
    events: list[Record]
    diagnostics: Record = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether there is a set."""
        return (self.folder / "distilled.json").exists()

    @cached_property
    def distilled(self) -> DistilledSet:
        """The set, verified; once, for hashing and reading it is most of the work of a report."""
        return load(self.folder)

    def initial(self) -> InitialPairs | None:
        """What its pairs started from."""
        return read_initial_pairs(self.folder / "run")

    def of_kind(self, kind: str) -> list[Record]:
        """Its events of one kind."""
        return [event for event in self.events if event.get("kind") == kind]


def is_run(place: Path) -> bool:
    """Whether a folder is a set, finished or in the making."""
    return (place / "distilled.json").exists() or (place / "run" / "events.jsonl").exists()


def read_run_record(folder: Path, name: str | None = None) -> RunRecord:
    """A set and its run, as far as they are there."""
    run = folder / "run"
    record = read_json(run / "run.json") if (run / "run.json").exists() else {}
    diagnostics: Record = next(
        (read_json(run / name) for name in (DIAGNOSTICS, OLD_DIAGNOSTICS) if (run / name).exists()), {}
    )
    config = record.get("config", {})
    named = name or folder.resolve().name
    return RunRecord(named, folder, config, record.get("versions", {}), read_events(run), diagnostics)


def scores_of(runs: list[RunRecord]) -> list[Record]:
    """What `pairstill evaluate` wrote down of these sets."""
    rows = []
    for run in runs:
        path = run.folder / "run" / "scores.jsonl"
        for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else []:
            with contextlib.suppress(json.JSONDecodeError):
                rows.append(json.loads(line))
    return rows
