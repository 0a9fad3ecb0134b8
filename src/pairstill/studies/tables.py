"""The table of a comparison: CSV and JSON for machines, Markdown for people."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pairstill.compare.study import Study
from pairstill.evaluation import METRICS
from pairstill.files import write_text

Record = dict[str, Any]


def write_tables(out: Path, study: Study, records: Sequence[Record]) -> None:
    """Write the table as CSV, JSON and Markdown, under the study's name."""
    write_text(out / f"{study.name}.json", json.dumps([_rounded(record) for record in records], indent=2) + "\n")
    write_text(out / f"{study.name}.csv", as_csv(records))
    write_text(out / f"{study.name}.md", as_markdown(study, records))


def as_csv(records: Sequence[Record]) -> str:
    """All records with all their fields."""
    columns = list(dict.fromkeys(key for record in records for key in record))
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(_rounded(record) for record in records)
    return text.getvalue()


def as_markdown(study: Study, records: Sequence[Record]) -> str:
    """The table, by number of pairs: best mean bold, runner-up underlined, the full set beneath, failures last."""
    done = [record for record in records if "error" not in record]
    lines = [f"# {study.title}", "", _describe(study), ""]
    header = ["method", "pairs", *(f"{metric[:2].upper()}@{metric[2:]}" for metric in METRICS), "mean"]
    beside = any(record.get("published_mean") is not None for record in records)
    if beside:
        header.append("published mean")
    lines += [f"| {' | '.join(header)} |", f"| {' | '.join(['---'] * len(header))} |"]
    budgets = list(dict.fromkeys(r["pairs"] for r in done if r["method"] != "full"))
    for budget in budgets:
        group = [record for record in done if record["pairs"] == budget and record["method"] != "full"]
        ranked = sorted({round(record["mean"], 3) for record in group}, reverse=True)
        lines += [_line(record, ranked, beside) for record in group]
    lines += [_line(record, [], beside) for record in done if record["method"] == "full"]
    failed = [record for record in records if "error" in record]
    if failed:
        lines += ["", "Without a figure:", ""]
        lines += [f"- {record['label']}, {record['pairs']} pairs: {record['error']}" for record in failed]
    return "\n".join([*lines, ""])


def _describe(study: Study) -> str:
    return (
        f"Protocol `{study.protocol}`, mean over {study.seeds} students ± standard deviation; best **bold**, "
        "runner-up <u>underlined</u> at each number of pairs."
    )


def _line(record: Record, ranked: list[float], beside: bool) -> str:
    mean = f"{record['mean']:.1f} ± {record['mean_std']:.1f}"
    place = ranked.index(round(record["mean"], 3)) if len(ranked) > 1 else -1
    mean = f"**{mean}**" if place == 0 else f"<u>{mean}</u>" if place == 1 else mean
    cells = [record["label"], f"{record['pairs']:,}", *(f"{record[metric]:.1f}" for metric in METRICS), mean]
    if beside:
        published = record.get("published_mean")
        cells.append("" if published is None else f"{published:.1f}")
    return f"| {' | '.join(cells)} |"


def _rounded(record: Record) -> Record:
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in record.items()}
