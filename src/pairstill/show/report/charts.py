"""Small charts as SVG text that lives inside a page: colours come from the page, so that they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 460, 250
LEFT, RIGHT, TOP, BOTTOM = 44, 20, 10, 36
ACROSS, UPWARDS = (LEFT, WIDTH - RIGHT), (HEIGHT - BOTTOM, TOP)
COLOURS = 7
"""How many classes c0, c1, ... the page has colours for; further series are dashed."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Scale:
    """From values low...high to pixels start...end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        share = (value - self.low) / ((self.high - self.low) or 1)
        return round(self.start + share * (self.end - self.start), 1)


def lines(series: Mapping[str, Points], x_label: str, y_label: str, dots: bool = True) -> str:
    """Series of (x, y) points as lines, with axes and a legend."""
    series = {name: points for name, points in series.items() if points}
    if not series:
        return ""
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points]
    x, y = (_axis(_from_zero(values), *ends) for values, ends in ((xs, ACROSS), (ys, UPWARDS)))
    drawn = []
    for number, (name, points) in enumerate(series.items()):
        look = f"c{number % COLOURS}{' dashed' if number >= COLOURS else ''}"
        path = " ".join(f"{x(a)},{y(b)}" for a, b in points)
        drawn.append(f'<polyline class="line {look}" points="{path}"/>')
        if dots:
            drawn += [
                f'<circle class="dot {look}" cx="{x(a)}" cy="{y(b)}" r="3"><title>{escape(name)}: {_number(b)} at '
                f"{_number(a)}</title></circle>"
                for a, b in points
            ]
    return _chart(x, y, x_label, y_label, drawn) + _legend(list(series))


def stems(rows: Sequence[tuple[str, float, float]], x_label: str, y_label: str) -> str:
    """One stem for each (name, mean, deviation), in order; the names show on hover."""
    if not rows:
        return ""
    x = Scale(-0.5, len(rows) - 0.5, *ACROSS)
    y = _axis([0, *(mean + spread for _, mean, spread in rows)], *UPWARDS)
    drawn = []
    for place, (name, mean, spread) in enumerate(rows):
        at, low, high = x(place), y(max(0, mean - spread)), y(mean + spread)
        drawn.append(
            f'<g class="stem c0"><title>{escape(name)}: {_number(mean)} ± {_number(spread)}</title>'
            f'<line x1="{at}" x2="{at}" y1="{y(0)}" y2="{y(mean)}"/>'
            f'<line class="thin" x1="{at}" x2="{at}" y1="{low}" y2="{high}"/>'
            f'<circle cx="{at}" cy="{y(mean)}" r="3"/></g>'
        )
    return _chart(x, y, x_label, y_label, drawn, x_ticks=[])


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from at most `low` to at least `high`, about so many."""
    if high <= low:
        high = low + (abs(low) or 1)
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 10) for index in range(first, last + 1)]


def _from_zero(values: Sequence[float]) -> Sequence[float]:
    return [0, *values] if min(values) >= 0 else values


def _axis(values: Sequence[float], start: float, end: float) -> Scale:
    marks = ticks(min(values), max(values))
    return Scale(marks[0], marks[-1], start, end)


def _chart(
    x: Scale, y: Scale, x_label: str, y_label: str, drawn: Sequence[str], x_ticks: Sequence[float] | None = None
) -> str:
    parts = []
    for mark in ticks(y.low, y.high):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(mark)}" y2="{y(mark)}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y(mark) + 3.5}" text-anchor="end">{_number(mark)}</text>')
    for mark in ticks(x.low, x.high) if x_ticks is None else x_ticks:
        parts.append(
            f'<text class="tick" x="{x(mark)}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{_number(mark)}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="label" x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>')
    name = escape(f"{y_label} against {x_label}", quote=True)
    inside = "".join([*parts, *drawn])
    return (
        f'<div class="axis-name">{escape(y_label)}</div>'
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">{inside}</svg>'
    )


def _legend(names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    entries = (
        f'<li class="c{number % COLOURS}{" dashed" if number >= COLOURS else ""}">{escape(name)}</li>'
        for number, name in enumerate(names)
    )
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _number(value: float) -> str:
    """As short as is exact enough to read."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
