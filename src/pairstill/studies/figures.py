"""Figures of a comparison: its rows as points; recall against the set's size; recall and loss against iterations."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pairstill.runtime.files import atomic
from pairstill.runtime.run_folder import read_events

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Told apart by every kind of colour vision (Okabe and Ito)."""

LOSS_POINTS = 40

MOST_CURVES = 2 * len(COLOURS)


def write_points(out: Path, name: str, title: str, records: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Draw each row's mean recall and deviation as SVG and PNG, published figures beside; returns the files."""
    done = [record for record in records if "error" not in record][::-1]
    if not done:
        return []
    from matplotlib.figure import Figure

    several = len({record["pairs"] for record in done if record["method"] != "full"}) > 1
    names = [f"{r['label']}, {r['pairs']:,}" if several and r["method"] != "full" else r["label"] for r in done]
    figure = Figure(figsize=(7, 0.9 + 0.24 * len(done)), layout="constrained")
    axes, rows = figure.subplots(), range(len(done))
    means, spreads = [record["mean"] for record in done], [record["mean_std"] for record in done]
    axes.errorbar(means, rows, xerr=spreads, fmt="o", ms=4, color=COLOURS[0], label="here")
    beside = [(r["published_mean"], row) for row, r in enumerate(done) if r.get("published_mean") is not None]
    if beside:
        axes.plot(*zip(*beside, strict=True), "D", ms=4, mfc="none", color=COLOURS[1], label="published")
        axes.legend(frameon=False, fontsize=8)
    axes.set_yticks(rows, names, fontsize=8)
    axes.set_ylim(-0.8, len(done) - 0.2)
    axes.set_xlim(left=0)
    axes.set_xlabel("mean recall, %")
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")  # of the figure: the axes may be too narrow for it
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    return _write(figure, out, name)


def write_sizes(out: Path, name: str, records: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Draw recall against pairs and against bytes, where a method has three sizes or more; returns the files."""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for record in sorted((r for r in records if "error" not in r and r.get("bytes")), key=lambda r: r["pairs"]):
        lines.setdefault(record["label"], []).append(record)
    if not any(len(line) > 2 for line in lines.values()) or len(lines) > MOST_CURVES:
        return []
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, key, unit, title in zip(
        figure.subplots(1, 2, sharey=True), ("pairs", "bytes"), (1, 1e6), ("pairs", "megabytes"), strict=True
    ):
        for number, (label, line) in enumerate(lines.items()):
            sizes, means = [r[key] / unit for r in line], [r["mean"] for r in line]
            axes.errorbar(sizes, means, [r["mean_std"] for r in line], marker="o", ms=3, label=label, **_style(number))
        for record in records:
            if record["method"] == "full" and "error" not in record:
                axes.axhline(record["mean"], color="#777777", linewidth=0.8, linestyle=":", label="all pairs")
        axes.set_xscale("log")
        ticks = [r[key] / unit for r in max(lines.values(), key=len)]
        axes.set_xticks(ticks, [f"{tick:.2g}" if tick < 10 else f"{tick:.0f}" for tick in ticks], minor=False)
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        _tidy(axes, title)
    figure.axes[0].set_ylabel("mean recall, %")
    names = figure.axes[0].get_legend_handles_labels()
    figure.legend(*names, loc="outside right center", frameon=False, fontsize=8)
    return _write(figure, out, f"{name}-sizes")


def checks_of(run: Path) -> list[dict[str, Any]]:
    """The checks of one distillation: iteration, seconds, recall."""
    if not (run / "events.jsonl").exists():
        return []
    return [event for event in read_events(run) if event["kind"] == "check"]


def relative_losses(run: Path) -> tuple[list[int], list[float]]:
    """Iterations, and a method's own loss there over what it was at first: the means of `LOSS_POINTS` equal parts."""
    steps = [event for event in read_events(run) if event["kind"] == "step"]
    size = max(1, len(steps) // LOSS_POINTS)
    parts = [steps[start : start + size] for start in range(0, len(steps) - size + 1, size)]
    means = [statistics.fmean(step["loss"] for step in part) for part in parts]
    return [part[-1]["iteration"] for part in parts], [mean / means[0] for mean in means] if any(means[:1]) else means


def write_curves(out: Path, name: str, runs: Mapping[str, Path]) -> list[Path]:
    """Draw recall and loss of the runs that were checked more than once, as SVG and PNG; returns the files.

    None where there are too many to be told apart.

    Args:
        out: Folder of the comparison.
        name: Of the files.
        runs: Run folders by the label of their row.
    """
    curves = {label: checks for label, run in runs.items() if len(checks := checks_of(run)) > 1}
    if not 0 < len(curves) <= MOST_CURVES:
        return []
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    by_iteration, by_time, losses = figure.subplots(1, 3)
    for number, (label, checks) in enumerate(curves.items()):
        means = [check["mean"] for check in checks]
        for axes, key in ((by_iteration, "iteration"), (by_time, "seconds")):
            axes.plot([check[key] for check in checks], means, marker="o", ms=3, label=label, **_style(number))
        losses.plot(*relative_losses(runs[label]), label=label, **_style(number))
    for axes, title in ((by_iteration, "iterations"), (by_time, "seconds"), (losses, "iterations")):
        _tidy(axes, title)
    by_iteration.set_ylabel("mean recall of the choosing students, %")
    losses.set_ylabel("own loss / own loss at first")
    by_time.legend(frameon=False, fontsize=8)
    return _write(figure, out, f"{name}-curves")


def _style(number: int) -> dict[str, str]:
    """Colour and line of the number-th curve."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": "-" if number < len(COLOURS) else "--"}


def _tidy(axes: Any, label: str) -> None:
    """What the two panels of a figure have in common."""
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)


def _write(figure: Any, out: Path, name: str) -> list[Path]:
    """The figure as SVG and PNG; the same rows give the same bytes, so that a table made again shows what changed."""
    from matplotlib import rc_context

    files = {kind: out / f"{name}.{kind}" for kind in ("svg", "png")}
    with rc_context({"svg.hashsalt": name}):
        for kind, file in files.items():
            with atomic(file) as temporary:
                figure.savefig(temporary, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return list(files.values())
