from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pairstill.errors import PairstillError
from tests.data.sources.conftest import Parquet, opened


@pytest.mark.parametrize(
    ("row", "settings", "message"),
    [
        ({"words": 3, "image": b"x"}, {}, "which column holds the captions.*Set caption_column"),
        ({"caption": "x"}, {}, "which column holds the image.*none among: caption"),
        ({"a": b"x", "b": b"y", "caption": "x"}, {}, "several: a, b. Set image_column"),
        (
            {"image": b"x", "caption": "x"},
            {"image_column": "imag"},
            "unknown image_column .*Did you mean 'image'",
        ),
        ({"image": b"x", "caption": "x"}, {"split_column": "s"}, "unknown split_column"),
        ({"image": b"x", "caption": "x", "split": "trn"}, {}, "row 0: split is 'trn'"),
    ],
)
def test_columns_that_cannot_be_found(
    tmp_path: Path, parquet: Parquet, row: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(PairstillError, match=message):
        opened(parquet("x.parquet", [row]), tmp_path, **settings)
