"""What there is to show of a folder: one distilled set, several beside their scores, or a comparison."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pairstill.distillation.contract import config_under_new_names
from pairstill.errors import PairstillError
from pairstill.evaluation.scoring import METRICS
from pairstill.methods import METHODS
from pairstill.runtime.files import read_json
from pairstill.sets.run_record import Record, RunRecord, is_run, read_run_record, scores_of


@dataclass(frozen=True)
class ScoreTable:
    """A table of scores.

    Attributes:
        title: Above the table.
        rows: With a figure each; those without one have an `error`.
        runs: The distillations behind the rows.
    """

    title: str
    rows: list[Record]
    runs: list[RunRecord]


@dataclass(frozen=True)
class ReportContents:
    """All that a page shows.

    Attributes:
        title: Of the page.
        studies: Tables.
        runs: Distillations that are shown in full, with their pairs.
    """

    title: str
    studies: list[ScoreTable]
    runs: list[RunRecord]


def gather(folder: Path) -> ReportContents:
    """Find out what a folder holds."""
    if not folder.is_dir():
        raise PairstillError(f"{folder} is not a folder.")
    if (folder / "distilled.json").exists() or (folder / "run" / "run.json").exists():
        return _one_set(folder)
    if (folder / "rows").is_dir():
        return _comparison(folder)
    runs = [read_run_record(place) for place in sorted(folder.iterdir()) if is_run(place)]
    if not runs:
        raise PairstillError(
            f"{folder} holds nothing to report: give a distilled set, a folder of sets, or the --out of a comparison."
        )
    rows = read_json(folder / "results.json") if (folder / "results.json").exists() else []
    finished = [run for run in runs if run.finished]
    shown = [run for run in finished if run.of_kind("step")] or finished
    sources = sorted({run.distilled.info.get("dataset", {}).get("name", "unknown") for run in finished})
    titled = f"Distilled sets of {', '.join(sources)}" if sources else f"Runs in {folder.resolve().name}"
    return ReportContents(titled, [ScoreTable("Scores", rows or scores_of(runs), runs)], shown)


def _one_set(folder: Path) -> ReportContents:
    run = read_run_record(folder)
    rows = scores_of([run])
    title = f"{run.name}, still in the making"
    if run.finished:
        made = run.distilled
        source = made.info.get("dataset", {}).get("name", "an unknown dataset")
        title = f"{len(made)} pairs of {source} by {made.info.get('method', 'an unknown method')}"
    return ReportContents(title, [ScoreTable("Scores", rows, [run])], [run] if run.finished else [])


def _comparison(folder: Path) -> ReportContents:
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
        runs = [read_run_record(folder / place, name) for place, name in named.items() if is_run(folder / place)]
        studies.append(ScoreTable(title, rows, runs))
    if not studies:
        raise PairstillError(f"{folder} is a comparison without a table: run `pairstill compare` on it again.")
    return ReportContents(f"Comparison {folder.resolve().name}", studies, [])


def commands(run: RunRecord) -> list[str]:
    """The commands that make this set again."""
    config, info = run.config, run.distilled.info if run.finished else {}
    method = config.get("method", info.get("method", ""))
    kind = METHODS.get(method)
    config = config_under_new_names(config, kind.settings) if kind is not None else config
    towers = config.get("towers", {})
    wanted = {key: shlex.quote(str(towers[key])) for key in TOWER_OPTIONS if key in towers}
    options = "".join(f" --towers.{key.replace('_', '-')} {value}" for key, value in wanted.items())
    lines = [f"pairstill prepare SOURCE --out data{options}"]
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
