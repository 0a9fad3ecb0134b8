"""Curves of a comparison: recall against iterations and against time, from the checks that each distillation wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pairstill.files import atomic
from pairstill.run import read_events

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Told apart by every kind of colour vision (Okabe and Ito)."""


def checks_of(run: Path) -> list[dict[str, Any]]:
    """The checks of one distillation: iteration, seconds, recall."""
    if not (run / "events.jsonl").exists():
        return []
    return [event for event in read_events(run) if event["kind"] == "check"]


def write_curves(out: Path, name: str, runs: Mapping[str, Path]) -> list[Path]:
    """Draw the runs that were checked more than once, as SVG and PNG; returns the files.

    Args:
        out: Folder of the comparison.
        name: Of the files.
        runs: Run folders by the label of their row.
    """
    curves = {label: checks for label, run in runs.items() if len(checks := checks_of(run)) > 1}
    if not curves:
        return []
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, key, title in zip(
        figure.subplots(1, 2), ("iteration", "seconds"), ("iterations", "seconds"), strict=True
    ):
        for number, (label, checks) in enumerate(curves.items()):
            style = {"color": COLOURS[number % len(COLOURS)], "linestyle": "-" if number < len(COLOURS) else "--"}
            axes.plot([c[key] for c in checks], [c["mean"] for c in checks], marker="o", ms=3, label=label, **style)
        axes.set_xlabel(title)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    figure.axes[0].set_ylabel("mean recall of the choosing students, %")
    figure.axes[1].legend(frameon=False, fontsize=8)
    files = [out / f"{name}-curves.{kind}" for kind in ("svg", "png")]
    for file in files:
        with atomic(file) as temporary:
            figure.savefig(temporary, format=file.suffix[1:], dpi=150)
    return files
