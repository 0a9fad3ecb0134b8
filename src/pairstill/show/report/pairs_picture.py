"""A PNG of initial against distilled images, each with the real caption nearest to its text."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np

from pairstill.runtime.files import atomic
from pairstill.sets.distilled_set import DistilledSet


def before_and_after(initial: DistilledSet, distilled: DistilledSet, path: Path, count: int = 12) -> None:
    """Draw `count` pairs, evenly taken from the sets: initial above, distilled below, captions beneath each."""
    import matplotlib

    matplotlib.use("Agg", force=False)
    import matplotlib.pyplot as plt

    rows = np.unique(np.linspace(0, len(distilled) - 1, min(count, len(distilled))).round().astype(int))
    columns = min(6, len(rows))
    bands = -(-len(rows) // columns)
    figure, axes = plt.subplots(2 * bands, columns, figsize=(2.1 * columns, 5.4 * bands), squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for place, row in enumerate(rows):
        band, column = divmod(place, columns)
        for offset, pairs, label in ((0, initial, "initial"), (1, distilled, "distilled")):
            axis = axes[2 * band + offset][column]
            axis.imshow(pairs.pictures()[row].permute(1, 2, 0).numpy())
            axis.set_title(label if column == 0 else "", fontsize=9, loc="left", color="0.35")
            wrapped = "\n".join(textwrap.wrap(pairs.captions[row][0], 26, max_lines=3, placeholder=" …"))
            axis.text(0.5, -0.04, wrapped, transform=axis.transAxes, ha="center", va="top", fontsize=7)
    figure.suptitle(
        f"{len(distilled)} pairs, {distilled.info.get('method', '')}: images with the nearest real caption",
        fontsize=10,
    )
    figure.tight_layout(h_pad=2.6)
    with atomic(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
    plt.close(figure)
