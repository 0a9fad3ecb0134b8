"""Rows of results as a table for the terminal, and as CSV and JSON for everything else."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from pairstill.evaluation import METRICS, Row
from pairstill.files import write_text


def results_table(rows: Sequence[Row], title: str = "") -> Table:
    """A table with the best mean of the sets in bold; the full set stands beneath as the ceiling."""
    sets = [row for row in rows if row.method != "full"]
    best = max((row.mean for row in sets), default=0.0)
    table = Table(
        title=title or None, box=box.SIMPLE_HEAD, title_justify="left", title_style="", caption_justify="left"
    )
    table.add_column("method", no_wrap=True)
    for name in ("pairs", "IR@1", "IR@5", "IR@10", "TR@1", "TR@5", "TR@10", "mean"):
        table.add_column(name, justify="right", no_wrap=True)
    table.caption = f"mean ± standard deviation over {rows[0].seeds} students" if rows else None
    for row in [*sets, *(row for row in rows if row.method == "full")]:
        style = "bold" if row.method != "full" and row.mean == best else "dim" if row.method == "full" else ""
        cells = [row.method, f"{row.pairs:,}", *(f"{getattr(row, metric):.1f}" for metric in METRICS)]
        table.add_row(*cells, f"{row.mean:.1f} ± {row.mean_std:.1f}", style=style)
    return table


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as JSON (a list of objects) or CSV, by the file's ending."""
    records = [row.to_dict() for row in rows]
    if path.suffix == ".json":
        write_text(path, json.dumps([_rounded(record) for record in records], indent=2) + "\n")
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(_rounded(record) for record in records)
    write_text(path, text.getvalue())


def _rounded(record: dict[str, object]) -> dict[str, object]:
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in record.items()}
