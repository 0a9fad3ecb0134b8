"""Folders that version 0.1 wrote before its modules and settings had the names that they have now.

`tests/formats/before_rooms.zip` holds 24 images, prepared, with a bank, a set with its run, one that was stopped, a
student and a comparison.
"""

import json
import shutil
import zipfile
from pathlib import Path

import pytest
import torch

from pairstill import api
from pairstill.experts.bank import Bank
from pairstill.features.prepared_folder import open_prepared
from pairstill.runtime.files import read_tensors
from pairstill.runtime.launchers import InProcess
from pairstill.sets.distilled_set import load
from pairstill.sets.run_record import read_run_record, scores_of
from pairstill.sets.saved_student import load_student
from pairstill.show.report.page import write_report
from pairstill.studies import comparison
from pairstill.studies.study import read_study
from pairstill.training.training_recipe import Recipe
from tests.conftest import ROOT

STUDENT = Recipe(epochs=3, batch_size=16)
SETTINGS = {
    "iterations": 4, "check_every": 2, "passes": 3, "least_passes": 2, "width": 8, "real_batch": 8, "views": 0,
    "still": False, "average": False, "at_once": 8,
}  # fmt: skip
"""Those of the sets, by the names that they had."""


@pytest.fixture
def old(tmp_path, monkeypatch):
    """The folder, and in it the process: its dataset names its images by a relative path."""
    with zipfile.ZipFile(ROOT / "tests/formats/before_rooms.zip") as archive:
        archive.extractall(tmp_path)
    monkeypatch.chdir(tmp_path)
    bank = json.loads((tmp_path / "bank/bank.json").read_text())
    if open_prepared("data").encoded().identity() != bank["towers"]:
        pytest.skip("this version of timm draws other random weights than the one that made the folder")
    return tmp_path


def test_data_bank_set_and_student_open(old):
    data, bank, made = open_prepared(old / "data"), Bank.open(old / "bank"), load(old / "rehearsal")
    assert (len(data.dataset.images), len(bank.experts), len(made)) == (24, 2, 4)
    assert load_student(old / "student").encode_texts(["a red circle"]).shape == (1, 16)
    known = scores_of([read_run_record(old / "rehearsal")])[0]
    assert api.evaluate(made, data, seeds=2, student=STUDENT).mean == pytest.approx(known["mean"], abs=1e-6)
    assert read_run_record(old / "rehearsal").diagnostics["match"]["distilled"]


def test_an_old_bank_takes_more_experts(old):
    before = {path: path.read_bytes() for path in Path("bank").glob("expert-*/epoch-*")}
    bank = api.train_experts("data", "bank", 3, Recipe(epochs=2, batch_size=8))
    assert len(bank.experts) == 3
    assert before and all(path.read_bytes() == content for path, content in before.items())


def test_an_old_set_has_a_report(old):
    assert "rehearsal" in write_report(old / "rehearsal").read_text()


def test_a_run_that_was_stopped_before_the_names_changed_goes_on(old):
    made = api.distill("data", "stopped", "rehearsal", 4, settings=SETTINGS, resume=True, student=STUDENT)
    whole = load(old / "rehearsal")
    torch.testing.assert_close(made.images, whole.images)
    torch.testing.assert_close(made.texts, whole.texts)
    steps = [json.loads(line) for line in Path("stopped/run/events.jsonl").read_text().splitlines()]
    assert [step["iteration"] for step in steps if step["kind"] == "step"] == [1, 2, 3, 4]


def test_settings_under_their_old_names_are_those_under_the_new(old):
    renamed = {"passes": "inner_epochs", "least_passes": "min_inner_epochs", "width": "student_width"}
    renamed |= {"still": "alternate_initial_images", "average": "mean_texts", "at_once": "images_per_step"}
    new = {renamed.get(name, name): value for name, value in SETTINGS.items()}
    made = api.distill("data", "new", "rehearsal", 4, settings=new, student=STUDENT)
    torch.testing.assert_close(made.images, load(old / "rehearsal").images)
    ours, theirs = (read_tensors(folder / "texts.safetensors") for folder in (Path("new"), old / "rehearsal"))
    torch.testing.assert_close(ours, theirs)


def test_rows_of_an_old_comparison_are_not_run_again(old, monkeypatch):
    """A key is a digest of settings by the names that they had first."""
    known = json.loads(Path("compare/study.json").read_text())
    monkeypatch.setattr(comparison, "run_job", lambda job: pytest.fail(f"{job.entry.label} was run again"))
    rows = comparison.compare(read_study(Path("study.yaml")), Path("compare"), "data", InProcess())
    assert [(row["label"], row["set"]) for row in rows] == [(row["label"], row["set"]) for row in known]
    assert [row["mean"] for row in rows] == pytest.approx([row["mean"] for row in known], abs=0.01)


def test_a_changed_setting_is_another_row(old):
    study = Path("study.yaml").read_text()
    Path("study.yaml").write_text(study.replace("passes: 3", "passes: 4"))
    shutil.rmtree("compare/sets")
    rows = comparison.compare(read_study(Path("study.yaml")), Path("compare"), "data", InProcess())
    assert len(list(Path("compare/sets").glob("*/distilled.json"))) == 1
    assert {row["label"] for row in rows} == {"random, dropout", "rehearsal"}
