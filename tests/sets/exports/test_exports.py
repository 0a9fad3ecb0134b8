import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

import pairstill
from pairstill import api
from pairstill.cli.main import main
from pairstill.errors import PairstillError
from pairstill.evaluation.scoring import evaluate
from pairstill.runtime.files import read_manifest, sha256, write_manifest
from pairstill.sets.cards import licence_of
from pairstill.sets.distilled_set import load
from pairstill.sets.exports import FORMATS, export, load_export
from pairstill.training.protocols import protocol_named
from pairstill.training.training_recipe import Recipe

QUICK = Recipe(epochs=5, momentum=0.9, batch_size=16)


def head_of(folder):
    return yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])


@pytest.fixture
def soft(sets, tmp_path):
    """A set with a similarity, and strange captions."""
    made = load(sets / "mdm")
    captions = [['a "quoted" caption, with\nnewline, ünïcode 🙂', "another"], *made.captions[1:]]
    replace(made, captions=captions, similarity=torch.rand(6, 6)).save(tmp_path / "soft")
    return tmp_path / "soft"


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


def test_datasets_loads_the_export_offline(soft, tmp_path):
    from datasets import load_dataset

    export(soft, tmp_path / "hf", "hf")
    export(soft, tmp_path / "folder", "folder")
    pairs = load_dataset(str(tmp_path / "hf"), split="train", cache_dir=str(tmp_path / "cache"))
    assert pairs.column_names == ["image", "caption", "nearest_captions", "text_embedding", "similarity"]
    picture = (load(soft).pictures()[3] * 255).round().permute(1, 2, 0).numpy().astype(np.uint8)
    assert np.array_equal(np.asarray(pairs[3]["image"]), picture)
    np.testing.assert_array_equal(np.float32(pairs[3]["text_embedding"]), load(soft).texts[3].numpy())
    plain = load_dataset("imagefolder", data_dir=str(tmp_path / "folder"), split="train", cache_dir=str(tmp_path / "c"))
    assert plain[0]["text"] == 'a "quoted" caption, with\nnewline, ünïcode 🙂'


def test_an_export_can_be_prepared_again_as_a_dataset(sets, tmp_path):
    export(sets / "mdm", tmp_path / "out", "folder")
    data = api.prepare(str(tmp_path / "out"), tmp_path / "data", load_towers(sets), val_fraction=0.2, test_fraction=0.2)
    assert len(data.dataset.images) == 6


def load_towers(sets):
    return pairstill.Towers.from_dict({k: v for k, v in load(sets / "mdm").info["towers"].items() if k != "encoders"})


def test_cards_have_what_a_hub_reads(sets, tmp_path):
    export(sets / "mdm", tmp_path / "out", "hf")
    head = head_of(tmp_path / "out")
    assert head["size_categories"] == ["n<1K"] and head["task_categories"] == ["image-to-text", "text-to-image"]
    assert head["configs"][0]["data_files"][0] == {"split": "train", "path": "data/train-*"}
    text = (tmp_path / "out" / "README.md").read_text()
    assert "## Scores" in text and "| clean |" in text and "## Limits" in text and "| kernel | geodesic |" in text
    assert head_of(sets / "mdm")["pretty_name"].startswith("6 distilled pairs of")
    assert licence_of("Apache-2.0") == {"license": "apache-2.0"}
    assert licence_of("ask me")["license"] == "other" and licence_of(None) == {"license": "unknown"}


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
    with pytest.raises(PairstillError, match="how its pictures were normalised"):
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
