from __future__ import annotations

from pathlib import Path

import pytest

from pairstill.errors import PairstillError
from tests.data.sources.conftest import Parquet, opened, picture


def test_a_table_cannot_name_files_elsewhere(tmp_path: Path, parquet: Parquet) -> None:
    (tmp_path / "secret.png").write_bytes(picture(9))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "ok.png").write_bytes(picture(8))
    names = ["../secret.png", str(tmp_path / "secret.png"), "ok.png", "gone.png"]
    names.append(f"file://{tmp_path}/secret.png::hf://datasets/a/b")  # a chain that fsspec would follow
    rows = [{"image": {"bytes": None, "path": name}, "caption": "c"} for name in names]
    rows.append({"image": {"bytes": picture(1), "path": "x"}, "caption": "c"})
    dataset = opened(parquet("set/all.parquet", rows), tmp_path)
    with pytest.raises(PairstillError, match=r"row 4: .*No such file"):
        dataset.images.read(4)
    for row in (0, 1):
        with pytest.raises(PairstillError, match=f"row {row}: the image's name .* leads out of"):
            dataset.images.read(row)
    assert dataset.images.read(2) == picture(8)
    with pytest.raises(PairstillError, match=r"row 3: .*gone\.png: No such file"):
        dataset.images.read(3)
