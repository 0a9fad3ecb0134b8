"""What there is to show of a folder: one distilled set, several beside their scores, or a comparison."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pairstill.distilled import DistilledSet, load
from pairstill.errors import PairstillError
from pairstill.evaluation import METRICS
from pairstill.files import read_json
from pairstill.methods import METHODS
from pairstill.methods.first_pairs import FirstPairs, read_first_pairs
from pairstill.run import read_events

Record = dict[str, Any]


@dataclass(frozen=True)
class RunView:
    """A distillation, finished or not.

    Attributes:
        name: What it is called on the page.
        folder: Of the set; its run is in `folder/run`.
        config: What was asked for; empty for a set that came without its run.
        versions: Of what made it.
        events: What happened.
        anatomy: What a teacher saw in the pairs at the end, if one looked.
    """

    name: str
    folder: Path
    config: Record
    versions: Record
    events: list[Record]
    anatomy: Record = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether there is a set."""
        return (self.folder / "distilled.json").exists()

    @cached_property
    def distilled(self) -> DistilledSet:
        """The set, verified; once, for hashing and reading it is most of the work of a report."""
        return load(self.folder)

    def initial(self) -> FirstPairs | None:
        """What its pairs started from."""
        return read_first_pairs(self.folder / "run")

    def of_kind(self, kind: str) -> list[Record]:
        """Its events of one kind."""
        return [event for event in self.events if event.get("kind") == kind]


@dataclass(frozen=True)
class Study:
    """A table of scores.

    Attributes:
        title: Above the table.
        rows: With a figure each; those without one have an `error`.
        runs: The distillations behind the rows.
    """

    title: str
    rows: list[Record]
    runs: list[RunView]


@dataclass(frozen=True)
class Findings:
    """All that a page shows.

    Attributes:
        title: Of the page.
        studies: Tables.
        runs: Distillations that are shown in full, with their pairs.
    """

    title: str
    studies: list[Study]
    runs: list[RunView]


def gather(folder: Path) -> Findings:
    """Find out what a folder holds."""
    if not folder.is_dir():
        raise PairstillError(f"{folder} is not a folder.")
    if (folder / "distilled.json").exists() or (folder / "run" / "run.json").exists():
        return _one_set(folder)
    if (folder / "rows").is_dir():
        return _comparison(folder)
    runs = [view_run(place) for place in sorted(folder.iterdir()) if is_run(place)]
    if not runs:
        raise PairstillError(
            f"{folder} holds nothing to report: give a distilled set, a folder of sets, or the --out of a comparison."
        )
    rows = read_json(folder / "results.json") if (folder / "results.json").exists() else []
    finished = [run for run in runs if run.finished]
    shown = [run for run in finished if run.of_kind("step")] or finished
    sources = sorted({run.distilled.info.get("dataset", {}).get("name", "unknown") for run in finished})
    titled = f"Distilled sets of {', '.join(sources)}" if sources else f"Runs in {folder.resolve().name}"
    return Findings(titled, [Study("Scores", rows or scores_of(runs), runs)], shown)


def is_run(place: Path) -> bool:
    """Whether a folder is a set, finished or in the making."""
    return (place / "distilled.json").exists() or (place / "run" / "events.jsonl").exists()


def view_run(folder: Path, name: str | None = None) -> RunView:
    """A set and its run, as far as they are there."""
    run = folder / "run"
    record = read_json(run / "run.json") if (run / "run.json").exists() else {}
    anatomy = read_json(run / "anatomy.json") if (run / "anatomy.json").exists() else {}
    config = record.get("config", {})
    named = name or folder.resolve().name
    return RunView(named, folder, config, record.get("versions", {}), read_events(run), anatomy)


def _one_set(folder: Path) -> Findings:
    run = view_run(folder)
    rows = scores_of([run])
    title = f"{run.name}, still in the making"
    if run.finished:
        made = run.distilled
        source = made.info.get("dataset", {}).get("name", "an unknown dataset")
        title = f"{len(made)} pairs of {source} by {made.info.get('method', 'an unknown method')}"
    return Findings(title, [Study("Scores", rows, [run])], [run] if run.finished else [])


def scores_of(runs: list[RunView]) -> list[Record]:
    """What `pairstill evaluate` wrote down of these sets."""
    rows = []
    for run in runs:
        path = run.folder / "run" / "scores.jsonl"
        for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else []:
            with contextlib.suppress(json.JSONDecodeError):
                rows.append(json.loads(line))
    return rows


def _comparison(folder: Path) -> Findings:
    studies = []
    for table in sorted(folder.glob("*.json")):
        rows = read_json(table)
        heading = table.with_suffix(".md")
        title = (
            heading.read_text(encoding="utf-8").split("\n")[0].removeprefix("# ") if heading.exists() else table.stem
        )
        named: dict[str, str] = {}
        for row in rows:
            if row.get("set"):
                named.setdefault(row["set"], f"{row['label']}, {row['pairs']}")
        runs = [view_run(folder / place, name) for place, name in named.items() if is_run(folder / place)]
        studies.append(Study(title, rows, runs))
    if not studies:
        raise PairstillError(f"{folder} is a comparison without a table: run `pairstill compare` on it again.")
    return Findings(f"Comparison {folder.resolve().name}", studies, [])


def commands(run: RunView) -> list[str]:
    """The commands that make this set again."""
    config, info = run.config, run.distilled.info if run.finished else {}
    method = config.get("method", info.get("method", ""))
    towers = config.get("towers", {})
    wanted = {key: shlex.quote(str(towers[key])) for key in TOWER_OPTIONS if key in towers}
    options = "".join(f" --towers.{key.replace('_', '-')} {value}" for key, value in wanted.items())
    lines = [f"pairstill prepare SOURCE --out data{options}"]
    kind = METHODS.get(method)
    bank = ""
    if kind is not None and kind.needs_bank:
        lines.append("pairstill experts data --out bank")
        bank = " --bank bank"
    settings = "".join(
        f" --settings.{name.replace('_', '-')} {shlex.quote(str(value))}"
        for name, value in config.get("settings", {}).items()
        if kind is not None and value != _default(kind.settings, name)
    )
    pairs, seed = config.get("pairs", 100), config.get("seed", 0)
    protocol = config.get("protocol", "clean")
    lines.append(
        f"pairstill distill data --method {method} --pairs {pairs} --seed {seed} --protocol {protocol}{bank}{settings} "
        "--out set"
    )
    lines.append(f"pairstill evaluate set --data data --protocol {protocol}")
    return lines


TOWER_OPTIONS = ("image", "text", "train", "image_size", "embed_dim")


def _default(settings: type, name: str) -> Any:
    return next((f.default for f in dataclasses.fields(settings) if f.name == name), None)


def full_mean(rows: list[Record]) -> float | None:
    """Mean recall of all pairs, where the table has it."""
    return next((row["mean"] for row in rows if row.get("method") == "full" and "error" not in row), None)


COLUMNS = {metric: f"{metric[:2].upper()}@{metric[2:]}" for metric in METRICS}
