import base64
import io

import numpy as np
import pytest
from PIL import Image

from pairstill.sets.distilled_set import load
from pairstill.sets.initial_record import read_initial_pairs
from pairstill.show.report import gallery as gallery_module
from pairstill.show.report.gallery import gallery


def decoded(address):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(address.split(",")[1]))).convert("RGB"))


def test_a_gallery_has_the_pictures_before_and_after(sets):
    made, first = load(sets / "mdm"), read_initial_pairs(sets / "mdm" / "run")
    shown = gallery(made, first)
    assert shown["size"] == 32 and len(shown["pairs"]) == 6
    pair = shown["pairs"][2]
    picture = (made.pictures()[2] * 255).permute(1, 2, 0).numpy()
    assert np.abs(decoded(pair["after"]) - picture).mean() < 12
    assert np.abs(decoded(pair["before"]).astype(float) - first.pictures[2].permute(1, 2, 0).numpy()).mean() < 12
    moved = np.abs(picture.round() - first.pictures[2].permute(1, 2, 0).numpy()).mean()
    assert pair["moved"] == pytest.approx(moved, abs=0.02)
    assert pair["captions"] == list(made.captions[2]) and pair["first"] == first.captions[2]
    assert pair["cell"] == first.cells[2]
    coreset = gallery(load(sets / "random"), read_initial_pairs(sets / "random" / "run"))
    assert "before" not in coreset["pairs"][0]


def test_a_gallery_keeps_to_its_budget(sets, monkeypatch):
    made = load(sets / "mdm")
    fine = sum(len(pair["after"]) for pair in gallery(made, None)["pairs"])
    monkeypatch.setattr(gallery_module, "BUDGET", fine // 2)
    assert sum(len(pair["after"]) for pair in gallery(made, None)["pairs"]) < fine
