"""One HTML file that shows a run or a comparison, and needs nothing but a browser."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from pairstill.runtime.files import write_text
from pairstill.sets.run_record import Record, RunRecord
from pairstill.show.report.charts import lines, stems
from pairstill.show.report.contents import COLUMNS, ReportContents, ScoreTable, commands, full_mean, gather
from pairstill.show.report.gallery import gallery

MOST_CURVES = 14
NOT_TERMS = ("kind", "seconds", "iteration", "epoch", "step", "small_brackets", "loss")


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a folder, into it or to `out`; returns where it is."""
    path = out or folder / "report.html"
    write_text(path, render(gather(folder)))
    return path


def render(findings: ReportContents) -> str:
    """The page as text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("pairstill.show.report"),
        autoescape=select_autoescape(["html"], default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    galleries = [gallery(run.distilled, run.initial()) for run in findings.runs]
    return environment.get_template("page.html").render(
        title=findings.title,
        style=asset("page.css"),
        script=asset("page.js"),
        columns=COLUMNS,
        studies=[_study(study) for study in findings.studies],
        runs=[_run(run) for run in findings.runs],
        galleries=_for_script(galleries),
    )


def _study(study: ScoreTable) -> Record:
    done = [row for row in study.rows if "error" not in row]
    full = full_mean(done)
    best = {
        pairs: sorted({row["mean"] for row in done if row["pairs"] == pairs and row["method"] != "full"})[-2:][::-1]
        for pairs in {row["pairs"] for row in done}
    }
    rows = [
        {
            **row,
            "label": row.get("label", row["method"]),
            "share": 100 * row["mean"] / full if full else None,
            "place": best[row["pairs"]].index(row["mean"]) if _ranked(row, best) else None,
        }
        for row in done
    ]
    return {
        "title": study.title,
        "rows": rows,
        "failed": [row for row in study.rows if "error" in row],
        "has_share": full is not None,
        "has_published": any(row.get("published_mean") is not None for row in done),
        "has_cost": any(row.get("seconds_per_iteration") for row in done),
        "charts": recall_charts(study.runs) if len([run for run in study.runs if run.of_kind("check")]) > 1 else [],
    }


def _ranked(row: Record, best: dict[int, list[float]]) -> bool:
    means = best[row["pairs"]]
    return row["method"] != "full" and len(means) > 1 and row["mean"] in means


def recall_charts(runs: Sequence[RunRecord]) -> list[str]:
    """Recall of the choosing students against iterations and against time."""
    checked = {run.name: checks for run in runs if len(checks := run.of_kind("check")) > 1}
    if not 0 < len(checked) <= MOST_CURVES:
        return []
    return [
        lines(
            {name: [(check[key], check["mean"]) for check in checks] for name, checks in checked.items()},
            label,
            "mean recall of the choosing students, %",
        )
        for key, label in (("iteration", "iterations"), ("seconds", "seconds"))
    ]


def loss_chart(run: RunRecord) -> str:
    """The loss and its terms against iterations, at most 400 points each."""
    steps = [step for step in run.of_kind("step") if "iteration" in step]
    every = len(steps) // 200 | 1  # odd, so that iterations of two kinds by turns are both shown
    shown = steps[::every]
    terms = ["loss", *(key for key in (shown[0] if shown else {}) if key not in NOT_TERMS)]
    series = {
        term: [(step["iteration"], step[term]) for step in shown if isinstance(step.get(term), (int, float))]
        for term in terms
    }
    return lines(series, "iterations", "loss and its terms", dots=False)


def diagnostic_charts(run: RunRecord) -> list[str]:
    """What a teacher saw: three distributions of cosines, and the merge ratio of each layer."""
    found = run.diagnostics
    titles = {
        "match": "cosine of a pair's image and text",
        "agreement": "cosine of two pairs' agreement",
        "discrepancy": "cosine of two pairs' discrepancy",
    }
    charts = []
    for kind, title in titles.items():
        if kind in found:
            middle = [(2 * place + 1) / found["bins"] - 1 for place in range(found["bins"])]
            series = {name: list(zip(middle, shares, strict=True)) for name, shares in found[kind].items()}
            charts.append(lines(_without_empty_ends(series), title, "share", dots=False))
    if found.get("ratios"):
        rows = [(row["layer"], row["mean"], row["std"]) for row in found["ratios"]]
        charts.append(stems(rows, "layers, from first to last", "merge ratio t"))
    return charts


def _without_empty_ends(series: dict[str, list[tuple[float, float]]]) -> dict[str, list[tuple[float, float]]]:
    """The same, without the bins at both ends that are empty in all of them."""
    filled = [place for points in series.values() for place, (_, share) in enumerate(points) if share > 0]
    low, high = max(0, min(filled, default=0) - 1), max(filled, default=0) + 2
    return {name: points[low:high] for name, points in series.items()}


def _run(run: RunRecord) -> Record:
    made = run.distilled
    facts = {
        "dataset": made.info.get("dataset", {}).get("name", "unknown"),
        "training images": made.info.get("dataset", {}).get("training_images"),
        "method": made.info.get("method"),
        "pairs": len(made),
        "image encoder": made.info.get("towers", {}).get("image"),
        "text encoder": made.info.get("towers", {}).get("text"),
        "image size": f"{made.images.shape[-1]} px",
        "trained": made.info.get("towers", {}).get("train"),
        "protocol": run.config.get("protocol"),
        "chosen iteration": made.info.get("chosen", {}).get("iteration"),
        "seed": made.info.get("seed"),
        "pairstill": made.info.get("pairstill"),
        "licence of the source": made.info.get("dataset", {}).get("license") or "unknown",
    }
    return {
        "name": run.name,
        "facts": {name: value for name, value in facts.items() if value is not None},
        "recall": recall_charts([run]),
        "loss": loss_chart(run),
        "diagnostics": diagnostic_charts(run),
        "config": yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True) if run.config else "",
        "versions": run.versions,
        "commands": commands(run),
    }


def asset(name: str) -> str:
    """The text of a file that pages are made of."""
    return (files("pairstill.show.report") / "templates" / name).read_text(encoding="utf-8")


def _for_script(value: Any) -> str:
    """JSON that can stand inside a script element: no text in it can end the element."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")
