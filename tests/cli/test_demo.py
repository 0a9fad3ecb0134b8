import json

import pytest
from PIL import Image

from pairstill.cli import demo
from pairstill.methods.distributions import mdm
from pairstill.methods.selection import kmeans, random_pairs
from pairstill.methods.through_training import rehearsal
from tests.conftest import TINY_HEADS, TINY_RECIPE


@pytest.mark.slow
def test_the_demo_makes_what_it_promises_and_continues(shapes, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "SOURCE", str(shapes))
    monkeypatch.setattr(demo, "TOWERS", TINY_HEADS)
    monkeypatch.setattr(demo, "RECIPE", TINY_RECIPE)
    monkeypatch.setattr(demo, "EXPERTS", 2)
    monkeypatch.setattr(demo, "PAIRS", 8)
    settings = {
        "random": random_pairs.Settings(),
        "kmeans": kmeans.Settings(),
        "mdm": mdm.Settings(iterations=2),
        "rehearsal": rehearsal.Settings(iterations=2, inner_epochs=2, real_batch=16),
    }
    monkeypatch.setattr(demo, "SETTINGS", settings)
    first = demo.run_demo(tmp_path / "demo")
    shown = capsys.readouterr()
    assert "distilled pairs give" in shown.out
    assert "1/3" in shown.err
    rows = json.loads((tmp_path / "demo/results.json").read_text())
    assert [row["method"] for row in rows] == ["random", "kmeans", "mdm", "rehearsal", "full"]
    keys = "method pairs towers protocol ir1 ir5 ir10 tr1 tr5 tr10 mean mean_std seconds"
    assert all(set(keys.split()) <= set(row) for row in rows)
    assert all(row["seeds"] == 5 for row in rows)
    assert Image.open(tmp_path / "demo/pairs.png").size[0] > 500
    again = demo.run_demo(tmp_path / "demo")
    assert [row.mean for row in again] == [row.mean for row in first]
