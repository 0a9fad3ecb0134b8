"""The paper's own regime, NFNet-L0 and BERT at 224 px, takes a GPU for days. Here its recipes run on tiny networks."""

import csv
from dataclasses import replace

import pytest

from pairstill import api
from pairstill.runtime.launchers import InProcess
from pairstill.studies.comparison import compare
from pairstill.studies.study import read_study
from pairstill.towers import text_encoder, weights
from pairstill.towers.two_tower import Towers
from tests.conftest import ROOT, write_shapes

TINY_BERT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
FEW = {"iterations": 1, "check_every": 1, "inner_steps": 2, "inner_batch": 2, "real_batch": 8, "epochs": 2}
DATASETS = ("flickr8k", "flickr30k", "coco")


def recipe(dataset):
    return read_study(ROOT / "recipes" / "compare" / f"paper-{dataset}.yaml")


@pytest.mark.parametrize("dataset", DATASETS)
def test_it_is_the_papers(dataset):
    study = recipe(dataset)
    assert study.source() == Towers(image="nfnet_l0", text="bert", train="full", image_size=224)
    assert (study.protocol, study.seeds, study.experts) == ("mdm", 5, 20)
    expert, student = study.expert_recipe, study.student_recipe
    assert (expert.epochs, expert.lr, expert.text_lr, expert.momentum, expert.batch_size) == (10, 0.1, 0.1, 0.0, 128)
    assert (expert.augment, expert.one_caption, expert.share_of_lr(9)) == (True, False, 1.0)
    assert (student.epochs, student.lr, student.text_lr, student.momentum) == (100, 0.1, None, 0.9)
    assert (student.weight_decay, student.share_of_lr(49), student.share_of_lr(50)) == (5e-4, 1.0, 0.1)
    beside = [entry for entry in study.entries if entry.method != "full"]
    assert all(study.published_mean(entry) is not None for entry in beside if entry.method != "full")


@pytest.mark.parametrize("dataset", DATASETS)
def test_step_sizes_are_those_of_the_recipes_for_one_distillation(dataset):
    import yaml

    for entry in recipe(dataset).entries:
        file = ROOT / "recipes" / f"{entry.method}-{dataset}-{entry.pairs}.yaml"
        if file.exists():
            single = yaml.safe_load(file.read_text())["settings"]
            assert {name: float(value) for name, value in single.items()} == {
                name: float(entry.settings.get(name, value)) for name, value in single.items()
            }


@pytest.fixture
def tiny_data(tmp_path, monkeypatch):
    preset = replace(weights.TEXT_PRESETS["bert"], sizes=TINY_BERT)
    for module in (weights, text_encoder):
        monkeypatch.setitem(module.TEXT_PRESETS, "bert", preset)
    towers = Towers(image="test_nfnet@random", text="bert@random", train="full", image_size=32)
    return api.prepare(str(write_shapes(tmp_path / "shapes", 80)), tmp_path / "data", towers), towers


@pytest.mark.slow
def test_every_row_runs_from_data_to_score(tiny_data, tmp_path):
    data, towers = tiny_data
    study = recipe("flickr8k")
    entries = []
    for entry in study.entries:
        if entry.pairs in (0, 100):
            known = getattr(entry.all_settings(), "__dataclass_fields__", {})
            few = {name: value for name, value in FEW.items() if name in known}
            entries.append(replace(entry, pairs=6 if entry.pairs else 0, settings={**entry.settings, **few}))
    small = replace(
        study,
        entries=tuple(entries),
        towers=towers.to_dict(),
        experts=2,
        seeds=1,
        expert_recipe=replace(study.expert_recipe, epochs=2),
        student_recipe=replace(study.student_recipe, epochs=2),
    )
    records = compare(small, tmp_path / "out", data.folder, InProcess())
    assert [record["method"] for record in records] == [entry.method for entry in entries]
    assert not [record["error"] for record in records if "error" in record]
    assert len(list(csv.DictReader((tmp_path / "out/paper-flickr8k.csv").open()))) == len(entries) == 9
