"""Results as tables: for the terminal, and as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from pairstill.evaluation.scoring import METRICS, Result
from pairstill.runtime.files import write_text
from pairstill.studies.study import Study

Record = Mapping[str, Any]


def results_table(rows: Sequence[Result], title: str = "") -> Table:
    """A table with the best mean of the sets in bold; the full set stands beneath as the ceiling."""
    sets = [row for row in rows if row.method != "full"]
    best = max((row.mean for row in sets), default=0.0)
    table = Table(
        title=title or None, box=box.SIMPLE_HEAD, title_justify="left", title_style="", caption_justify="left"
    )
    table.add_column("method", overflow="fold")  # the one that gives way where the terminal is narrow
    for name in ("pairs", "IR@1", "IR@5", "IR@10", "TR@1", "TR@5", "TR@10", "mean"):
        table.add_column(name, justify="right", no_wrap=True)
    if rows:
        table.caption = f"mean ± standard deviation over {rows[0].seeds} student{'s' * (rows[0].seeds > 1)}"
    for row in [*sets, *(row for row in rows if row.method == "full")]:
        style = "bold" if row.method != "full" and row.mean == best else "dim" if row.method == "full" else ""
        cells = [row.method, f"{row.pairs:,}", *(f"{getattr(row, metric):.1f}" for metric in METRICS)]
        table.add_row(*cells, f"{row.mean:.1f} ± {row.mean_std:.1f}", style=style)
    return table


def write_results(path: Path, results: Sequence[Result]) -> None:
    """Write results as JSON (a list of objects) or CSV, by the file's ending."""
    records = [result.to_dict() for result in results]
    write_text(path, as_json(records) if path.suffix == ".json" else as_csv(records))


def write_tables(out: Path, study: Study, records: Sequence[Record]) -> None:
    """Write the table as CSV, JSON and Markdown, under the study's name."""
    write_text(out / f"{study.name}.json", as_json(records))
    write_text(out / f"{study.name}.csv", as_csv(records))
    write_text(out / f"{study.name}.md", as_markdown(study, records))


def as_json(records: Sequence[Record]) -> str:
    """All records as a list of objects."""
    return json.dumps([_rounded(record) for record in records], indent=2) + "\n"


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


def _rounded(record: Record) -> dict[str, Any]:
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in record.items()}
