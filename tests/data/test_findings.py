from __future__ import annotations

import numpy as np

from pairstill.data.findings import Findings, Spread

SOUND = {
    "images": {"train": 1200, "test": 3},
    "captions": {"train": 6000, "test": 15},
    "links": {"train": 6001, "test": 15},
}


def test_a_spread_is_that_of_the_counts() -> None:
    spread = Spread.of(np.array([4, 1, 4, 1]))
    assert spread == Spread(1, 2.5, 4) and str(spread) == "1 to 4, mean 2.5"
    assert Spread.of(np.array([], dtype=np.int64)) == Spread(0, 0.0, 0)


def test_only_what_is_worth_a_look_is_remarked() -> None:
    sound = Findings(**SOUND, smallest=(6, 5), largest=(11, 50)).lines()
    assert sound[1].split() == ["train", "1,200", "6,000", "6,001"]
    assert len(sound) == 1 + 2 + 3 and sound[-1] == "image sizes: 6 x 5 px to 11 x 50 px"
    leak = {"name": "a.png", "same_as": "b.png"}
    bad = Findings(**SOUND, smallest=(6, 5), largest=(11, 50), leaks=[leak], in_two_splits=2, dropped_images=1234)
    assert bad.lines() == [*sound, "images shared by splits (leaks): 3", "images dropped: 1,234"]
