import json
from dataclasses import replace

import pytest
import torch

import pairstill
from pairstill.cli.main import main
from pairstill.errors import PairstillError
from pairstill.evaluation.scoring import evaluate
from pairstill.runtime.files import read_manifest, sha256, write_manifest
from pairstill.sets.distilled_set import load
from pairstill.sets.exports import FORMATS, export, load_export
from pairstill.training.protocols import protocol_named
from pairstill.training.training_recipe import Recipe

QUICK = Recipe(epochs=5, momentum=0.9, batch_size=16)


@pytest.mark.parametrize("form", FORMATS)
def test_a_round_trip_loses_only_what_eight_bits_lose(form, soft, tmp_path):
    export(soft, tmp_path / "out", form)
    made, back = load(soft), load_export(tmp_path / "out")
    assert (made.pictures() - back.pictures()).abs().max() <= 0.5 / 255 + 1e-6
    assert torch.equal(made.texts, back.texts) and torch.equal(made.similarity, back.similarity)
    assert [list(near) for near in back.captions] == [list(near) for near in made.captions]
    assert back.info == json.loads(json.dumps(dict(made.info)))
    assert torch.equal(pairstill.load(tmp_path / "out").images, back.images)


@pytest.mark.parametrize("form", FORMATS)
def test_students_learn_from_an_export_what_clipped_pictures_teach(form, sets, heads_data, tmp_path):
    export(sets / "mdm", tmp_path / "out", form)
    made, encoded, clean = load(sets / "mdm"), heads_data.encoded(), protocol_named("clean")
    encoder = encoded.image_encoder
    rounded = encoder.normalise((made.pictures() * 255).round() / 255)
    expected = evaluate(encoded, replace(made, images=rounded), clean, 2, recipe=QUICK).mean
    assert evaluate(encoded, load_export(tmp_path / "out"), clean, 2, recipe=QUICK).mean == pytest.approx(
        expected, abs=1
    )


def test_what_can_not_be_exported_or_read_is_said(sets, tmp_path, capsys):
    assert main(["export", str(sets / "mdm"), "--out", str(tmp_path / "x"), "--to", "webdatset"]) == 2
    assert "webdataset" in capsys.readouterr().err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    with pytest.raises(PairstillError, match="not empty"):
        export(sets / "mdm", tmp_path / "full")
    with pytest.raises(PairstillError, match=r"no export\.json"):
        load_export(tmp_path / "full")
    made = load(sets / "mdm")
    replace(made, info={"method": "x"}).save(tmp_path / "bare")
    with pytest.raises(PairstillError, match="how its images were normalised"):
        export(tmp_path / "bare", tmp_path / "y")
    export(sets / "mdm", tmp_path / "evil", "folder")
    lines = (tmp_path / "evil/metadata.jsonl").read_text().replace("00000.png", "../00000.png")
    (tmp_path / "evil/metadata.jsonl").write_text(lines)
    with pytest.raises(PairstillError, match="was changed after the export"):
        load_export(tmp_path / "evil")
    record = read_manifest(tmp_path / "evil/export.json")
    record["sha256"]["metadata.jsonl"] = sha256(tmp_path / "evil/metadata.jsonl")
    write_manifest(tmp_path / "evil/export.json", record)
    with pytest.raises(PairstillError, match="outside its folder"):
        load_export(tmp_path / "evil")
