import json
from dataclasses import replace

import pytest

from pairstill.sets.distilled_set import load
from pairstill.sets.exports import export


def test_clipping_is_stated(sets, tmp_path):
    made = load(sets / "random")
    free = made.pictures()
    free[:, :, 0, 0] = 1.5
    shifted = replace(
        made, images=(free - 0.5) / 0.5, info={**made.info, "normalisation": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    )
    shifted.save(tmp_path / "set")
    export(tmp_path / "set", tmp_path / "out", "folder")
    clipped = json.loads((tmp_path / "out/export.json").read_text())["clipped"]
    assert clipped["share"] == pytest.approx(1 / 1024, rel=1e-3)
    assert clipped["by"] == pytest.approx(127.5, rel=1e-3)
    assert "0.1 % of their values lay outside" in (tmp_path / "out/README.md").read_text()
