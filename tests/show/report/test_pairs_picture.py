import numpy as np
import torch
from PIL import Image

from pairstill.sets.distilled_set import DistilledSet
from pairstill.show.report.pairs_picture import before_and_after

INFO = {"method": "mdm", "normalisation": {"mean": [0.0] * 3, "std": [1.0] * 3}}


def flat(red, count=5):
    """A set whose images have one colour each: so much red, and the more green the later they come."""
    colours = [(red, 50 * (row + 1), 7) for row in range(count)]
    images = torch.tensor(colours).reshape(count, 3, 1, 1).expand(-1, -1, 4, 4) / 255
    return DistilledSet(images, torch.zeros(count, 2), [["a caption $x_"] for _ in range(count)], INFO)


def rows_of(picture, colour):
    return np.flatnonzero((picture == colour).all(axis=2).any(axis=1))


def test_pairs_are_taken_evenly_and_the_distilled_ones_stand_below_the_initial_ones(tmp_path):
    before_and_after(flat(40), flat(200), tmp_path / "deep" / "pairs.png", count=3)
    picture = np.asarray(Image.open(tmp_path / "deep" / "pairs.png").convert("RGB"))
    for row in range(5):
        above, below = (rows_of(picture, (red, 50 * (row + 1), 7)) for red in (40, 200))
        if row in (0, 2, 4):
            assert len(above) and len(below) and above.max() < below.min()
        else:
            assert not len(above) and not len(below)
