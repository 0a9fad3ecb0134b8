import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from pairstill.cli.main import main
from pairstill.errors import PairstillError
from pairstill.features.encoded_dataset import EncodedDataset
from pairstill.runtime.launchers import InProcess, Processes
from pairstill.sets.distilled_set import load
from pairstill.studies.comparison import _left, _plan, _works, compare
from pairstill.studies.job import Job
from pairstill.studies.study import read_study
from pairstill.studies.trials import settings_text
from pairstill.towers.passes import Passes
from tests.studies.conftest import MDM, TOWERS, recipe


@pytest.mark.slow
def test_a_study_becomes_one_table_and_is_reused(heads_data, tmp_path, capfd):
    rows = [{"method": "random", "pairs": [4, 6]}, {**MDM, "label": "ours"}, {"method": "full"}]
    out = tmp_path / "out"
    records = compare(read_study(recipe(tmp_path, rows)), out, heads_data.folder)
    assert [(r["label"], r["pairs"]) for r in records[:3]] == [("random", 4), ("random", 6), ("ours", 6)]
    assert all(0 < record["mean"] <= 100 and record["peak_mib"] > 50 for record in records)
    assert records[2]["iterations"] == 2
    assert records[2]["expert_seconds"] > 0
    size = sum(file.stat().st_size for file in out.glob("banks/*/expert-*/*.safetensors"))
    assert records[2]["bank_mib"] == pytest.approx(size / 2**20)
    written = list(csv.DictReader((out / "study.csv").read_text().splitlines()))
    assert [row["label"] for row in written] == ["random", "random", "ours", "full"]
    text = (out / "study.md").read_text()
    assert text.count("**") >= 2
    assert "| full |" in text
    assert len(json.loads((out / "study.json").read_text())) == 4

    assert (out / "study-curves.svg").read_text().count("ours, 6") == 1
    assert (out / "study-curves.png").stat().st_size > 5000
    points = (out / "study.svg").read_text()
    assert all(name in points for name in ("random, 4", "random, 6", "ours, 6", "full"))
    assert (out / "study.png").stat().st_size > 5000

    stamps = {path: path.stat().st_mtime_ns for path in (out / "rows").iterdir()}
    capfd.readouterr()
    changed = [rows[0], {**MDM, "label": "renamed"}, {**MDM, "pairs": 4}, rows[2]]
    again = compare(read_study(recipe(tmp_path, changed)), out, heads_data.folder)
    assert "4 of 5 rows are there already" in capfd.readouterr().err
    assert [record["label"] for record in again] == ["random", "random", "renamed", "mdm", "full"]
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps


def test_the_trial_that_is_best_on_validation_becomes_the_row(heads_data, tmp_path, monkeypatch, capfd):
    """A comparison with a grid is the same comparison of its best trial alone, and says what each trial came to."""
    grid = [{"image_lr": 0.0, "text_lr": 0.0}, {"image_lr": 1e30}, {"image_lr": 10.0, "text_lr": 10.0}]
    out, settings = tmp_path / "out", {**MDM["settings"], "iterations": 8}
    row = {**MDM, "settings": settings, "grid": grid}
    (found,) = compare(read_study(recipe(tmp_path, [row])), out, heads_data.folder, InProcess())
    rows = [{**MDM, "settings": {**settings, **changes}} for changes in (grid[0], grid[2])]
    alone = compare(read_study(recipe(tmp_path, rows)), out, heads_data.folder, InProcess())
    recalls = [load(out / record["set"]).info["chosen"]["selection_recall"] for record in alone]
    best = alone[recalls.index(max(recalls))]
    assert {name: found[name] for name in ("mean", "set", "bytes")} == {
        name: best[name] for name in ("mean", "set", "bytes")
    }
    assert found["chosen_settings"] == settings_text(grid[0] if best is alone[0] else grid[2])
    assert found["trials"].count(" iterations, ") == 3
    assert "image_lr 1e+30: diverged" in found["trials"]
    assert found["trial_seconds"] > 0
    capfd.readouterr()
    compare(read_study(recipe(tmp_path, [row])), out, heads_data.folder, InProcess())
    assert "1 of 1 rows are there already" in capfd.readouterr().err


def test_a_grid_for_a_method_that_is_never_scored_is_refused(tmp_path):
    with pytest.raises(PairstillError, match="row 1: random is never scored on the way, so it can have no grid"):
        read_study(recipe(tmp_path, [{"method": "random", "grid": [{"x": 1}]}]))
    with pytest.raises(PairstillError, match="row 1, trial 2 of its grid"):
        read_study(recipe(tmp_path, [{**MDM, "grid": [{}, {"image_lrr": 1}]}]))


def test_pictures_pass_as_many_at_a_time_as_was_said_and_the_row_is_the_same(heads_data, tmp_path, monkeypatch, capfd):
    seen, through = set(), Passes.__call__

    def spy(passes, network, pictures):
        seen.add((passes.micro_batch, len(pictures)))
        return through(passes, network, pictures)

    monkeypatch.setattr(Passes, "__call__", spy)
    path, out = recipe(tmp_path, [MDM]), tmp_path / "out"
    compare(read_study(path), out, heads_data.folder, InProcess(), micro_batch=2)
    assert (2, 6) in seen
    monkeypatch.undo()
    capfd.readouterr()
    assert main(["compare", str(path), "--out", str(out), "--data", str(heads_data.folder)]) == 0
    assert "1 of 1 rows are there already" in capfd.readouterr().err


def test_a_micro_batch_of_nothing_is_refused_before_anything_long(heads_data, tmp_path, capfd):
    path, out = recipe(tmp_path, [MDM]), tmp_path / "out"
    words = ["compare", str(path), "--out", str(out), "--data", str(heads_data.folder), "--micro-batch", "0"]
    assert main(words) == 2
    assert "--micro-batch must be at least 1, not 0" in capfd.readouterr().err
    assert not out.exists()


@pytest.mark.slow
def test_a_row_that_fails_does_not_lose_the_others(heads_data, tmp_path):
    rows = [{"method": "random", "pairs": 10_000}, {"method": "random", "pairs": 4}]
    out = tmp_path / "out"
    path = recipe(tmp_path, rows)
    assert main(["compare", str(path), "--out", str(out), "--data", str(heads_data.folder)]) == 2
    text = (out / "study.md").read_text()
    assert "10000 pairs: --pairs 10000 is more than" in text
    assert "| random | 4 |" in text


def _killed(job):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.crash
def test_a_process_that_is_killed_is_said(heads_data, tmp_path, monkeypatch):
    monkeypatch.setattr("pairstill.studies.comparison.run_job", _killed)
    records = compare(
        read_study(recipe(tmp_path, [{"method": "random", "pairs": 4}])), tmp_path / "o", heads_data.folder
    )
    assert records[0]["error"] == "its process was killed by signal 9 (out of memory?)"
    monkeypatch.undo()
    records = compare(
        read_study(recipe(tmp_path, [{"method": "random", "pairs": 4}])), tmp_path / "o", heads_data.folder
    )
    assert "error" not in records[0]


def test_a_set_that_is_there_or_comes_with_an_earlier_row_is_no_work(tmp_path):
    rows = [MDM, {**MDM, "texts": "nearest", "label": "same set"}, {"method": "lors", "pairs": 10}, {"method": "full"}]
    study = read_study(recipe(tmp_path, rows))
    jobs = [Job(entry, study, tmp_path, "data", "students", tmp_path, tmp_path) for entry in study.entries]
    assert list(_works(jobs).values()) == [1 + 2 * 6 / 1000, 1, 1 + 1000 * 10 / 1000, 1]
    jobs[0].set_folder.mkdir(parents=True)
    (jobs[0].set_folder / "distilled.json").write_text("{}")
    assert list(_works(jobs).values()) == [1, 1, 11, 1]


def test_time_left_counts_what_was_done_of_the_rows_under_way():
    works = {"a": 3.0, "b": 3.0, "c": 4.0, "d": 2.0}
    assert _left(works, {"a"}, {"a"}) == pytest.approx(9 / 3)
    assert _left(works, {"a", "b", "c"}, {"a"}) == pytest.approx((1.5 + 2 + 2) / (3 + 1.5 + 2))
    assert _left(works, set(works), set(works)) == 0


def test_towers_and_encoders_are_part_of_the_key(heads_data, tmp_path):
    study = read_study(recipe(tmp_path, [{"method": "random", "pairs": 4}]))
    other = read_study(recipe(tmp_path, [{"method": "random", "pairs": 4}], towers={**TOWERS, "embed_dim": 8}))
    plans = [_plan(s, tmp_path, heads_data, Processes(), "cpu")[0] for s in (study, study, other)]
    assert plans[0].key() == plans[1].key()
    assert plans[0].set_key() != plans[2].set_key()


def test_the_weights_of_a_second_encoder_are_part_of_the_key(heads_data, tmp_path, monkeypatch):
    rows = [
        {"method": "rehearsal", "pairs": 4, "settings": {"extra_encoders": ["test_resnet@random"]}},
        {**MDM, "experts": 1},
    ]
    study = read_study(recipe(tmp_path, rows, experts=1))
    keys = [[job.set_key() for job in _plan(study, tmp_path, heads_data, InProcess(), "cpu")]]
    monkeypatch.setattr(EncodedDataset, "others", lambda self, images: dict.fromkeys(images, "other weights"))
    keys.append([job.set_key() for job in _plan(study, tmp_path, heads_data, InProcess(), "cpu")])
    assert keys[0][0] != keys[1][0]
    assert keys[0][1] == keys[1][1]


def test_a_finished_table_is_drawn_again_without_its_experts(heads_data, tmp_path):
    study, out = read_study(recipe(tmp_path, [MDM])), tmp_path / "out"
    records = compare(study, out, heads_data.folder, InProcess())
    shutil.rmtree(out / "banks")
    assert compare(study, out, heads_data.folder, InProcess()) == records
    assert not (out / "banks").exists()


@pytest.mark.slow
def test_what_stands_in_the_way_of_some_rows_is_said_in_theirs(heads_data, tmp_path, monkeypatch, capfd):
    def no_experts(*args):
        raise PairstillError("no experts today.")

    monkeypatch.setattr("pairstill.api.train_experts", no_experts)
    random = {"method": "random", "pairs": 4}
    rows = [MDM, random, {**random, "student": {"image": "no_such_network@random"}, "label": "strange"}]
    records = compare(read_study(recipe(tmp_path, rows)), tmp_path / "o", heads_data.folder, Processes(2))
    assert records[0]["error"] == "no experts today."
    assert records[1]["mean"] > 0
    assert "no_such_network" in records[2]["error"]
    assert "failed: strange" in capfd.readouterr().err


def test_data_that_nobody_names_is_asked_for(tmp_path):
    with pytest.raises(PairstillError, match="--data"):
        compare(read_study(recipe(tmp_path, [{"method": "random"}])), tmp_path / "out")


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_comparison_leaves_no_row_running_and_can_go_on(how, heads_data, tmp_path):
    endless = {**MDM, "settings": {"iterations": 100_000, "check_every": 100_000, "real_batch": 8}}
    path, out = recipe(tmp_path, [endless], name="long.yaml"), tmp_path / "out"
    command = [sys.executable, "-m", "pairstill.cli", "compare", str(path), "--out", str(out)]
    with (tmp_path / "log").open("w") as log:
        # Where tests run in the background, Ctrl-C is ignored from the start.
        heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
        process = subprocess.Popen(
            [*command, "--data", str(heads_data.folder)],
            stderr=log,
            stdout=log,
            preexec_fn=heard,  # noqa: PLW1509
        )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not any(
        '"step"' in events.read_text() for events in out.glob("sets/*/run/events.jsonl")
    ):
        time.sleep(0.2)
    process.send_signal(how)
    process.wait(timeout=60)
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL)
    while time.monotonic() < deadline and not list(out.glob("sets/*/run/checkpoint.safetensors")):
        time.sleep(0.2)
    time.sleep(1)
    size = next(out.glob("sets/*/run/events.jsonl")).stat().st_size
    time.sleep(1)
    assert next(out.glob("sets/*/run/events.jsonl")).stat().st_size == size  # nobody writes any more
    if how == signal.SIGINT:
        assert "Continue with:  pairstill compare" in (tmp_path / "log").read_text()
