import csv
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
import yaml

from pairstill import api
from pairstill.cli.main import main
from pairstill.errors import PairstillError
from pairstill.evaluation.scoring import METRICS, with_nearest_captions
from pairstill.experts.bank import Bank
from pairstill.features.encoded_dataset import EncodedDataset
from pairstill.runtime.files import locked, read_tensors
from pairstill.runtime.launchers import InProcess, Processes
from pairstill.sets.distilled_set import load
from pairstill.studies.comparison import _left, _plan, _works, compare
from pairstill.studies.job import Job, cost_of, seconds_per_iteration
from pairstill.studies.study import read_study
from pairstill.studies.tables import as_markdown
from pairstill.towers.passes import Passes
from tests.conftest import ROOT, TINY_HEADS

TOWERS = TINY_HEADS.to_dict()
BASE = {
    "title": "Small",
    "towers": TOWERS,
    "experts": 2,
    "expert": {"epochs": 2, "batch_size": 16},
    "student": {"epochs": 3, "batch_size": 16},
    "seeds": 2,
}
MDM = {"method": "mdm", "pairs": 6, "settings": {"iterations": 2, "check_every": 2, "real_batch": 8}}


def recipe(folder, rows, name="study.yaml", **changes):
    path = folder / name
    path.write_text(yaml.safe_dump({**BASE, **changes, "rows": rows}))
    return path


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


def test_recall_is_drawn_against_size_where_there_are_three(heads_data, tmp_path):
    out = tmp_path / "out"
    compare(read_study(recipe(tmp_path, [{"method": "random", "pairs": [4, 6]}])), out, heads_data.folder)
    assert not (out / "study-sizes.svg").exists()
    rows = [{"method": "random", "pairs": [4, 6, 8]}, {"method": "full"}]
    records = compare(read_study(recipe(tmp_path, rows)), out, heads_data.folder)
    assert (out / "study-sizes.svg").stat().st_size > 1000
    exact = [n * (3 * 32 * 32 + 2 * load(out / records[0]["set"]).texts.shape[1]) for n in (4, 6, 8)]
    for record, expected in zip(records, exact, strict=False):
        assert expected <= record["bytes"] < expected + 200  # a header
    assert "bytes" not in records[3]


def test_the_same_rows_give_the_same_figures_to_the_byte(heads_data, tmp_path):
    study, out = read_study(recipe(tmp_path, [{"method": "random", "pairs": [4, 6, 8]}])), tmp_path / "out"
    compare(study, out, heads_data.folder, InProcess())
    drawn = {file: file.read_bytes() for kind in ("svg", "png") for file in out.glob(f"study*.{kind}")}
    assert {file.name for file in drawn} == {"study.svg", "study.png", "study-sizes.svg", "study-sizes.png"}
    for file in drawn:
        file.unlink()
    compare(study, out, heads_data.folder, InProcess())
    assert drawn == {file: file.read_bytes() for file in drawn}


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


def test_keys_change_with_what_a_row_depends_on_and_with_nothing_else(tmp_path):
    def keys(rows, made_of="data", read_by="students", **changes):
        study = read_study(recipe(tmp_path, rows, **changes))
        jobs = [Job(entry, study, tmp_path, made_of, read_by, tmp_path, tmp_path) for entry in study.entries]
        return [(job.set_key(), job.key()) for job in jobs]

    rows = [{"method": "random", "pairs": 4}, MDM, {"method": "full"}]
    base = keys(rows)
    assert keys([{**rows[0], "label": "x"}, *rows[1:]], title="other") == base
    more_experts = keys(rows, experts=3)
    assert more_experts[0] == base[0] and more_experts[1] != base[1]
    more_seeds = keys(rows, seeds=3)
    assert [s for s, _ in more_seeds] == [s for s, _ in base]
    assert all(new != old for (_, new), (_, old) in zip(more_seeds, base, strict=True))
    assert keys([rows[0], {**MDM, "settings": {**MDM["settings"], "alpha": 0.4}}, rows[2]])[1] != base[1]
    assert all(new != old for new, old in zip(keys(rows, made_of="other data"), base, strict=True))
    other_students = keys(rows, read_by="others")
    assert [s for s, _ in other_students] == [s for s, _ in base]
    assert not {key for _, key in other_students} & {key for _, key in base}
    longer_students = keys(rows, student={"epochs": 9})
    assert longer_students[0] != base[0] and longer_students[2] == base[2]  # all pairs train with the experts' recipe


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


def test_a_row_is_what_its_recipe_says(heads_data, tmp_path):
    """The same pairs and the same scores as by hand: with the study's seed, students, experts and texts."""
    short = {"iterations": 2, "check_every": 2, "inner_epochs": 3, "min_inner_epochs": 3, "real_batch": 8}
    of_students = {"method": "rehearsal", "pairs": 6, "settings": short, "texts": "nearest"}  # they rehearse as scored
    rows = [{**MDM, "experts": 2}, of_students, {**MDM, "label": "with all experts"}]
    path = recipe(tmp_path, rows, experts=3, seed=3, student={"epochs": 3, "batch_size": 4, "lr": 0.3})
    study, out, encoded = read_study(path), tmp_path / "out", heads_data.encoded()
    records = compare(study, out, heads_data.folder, InProcess())
    (bank,) = (out / "banks").glob("*/bank.json")
    experts = Bank.open(bank.parent).first(2)
    for entry, record, read in zip(study.entries[:2], records[:2], (None, with_nearest_captions), strict=True):
        made = api.distill(
            heads_data,
            hand := tmp_path / entry.method,
            entry.method,
            6,
            experts if entry.method == "mdm" else None,
            settings=entry.all_settings(),
            seed=3,
            student=study.student_recipe,
        )
        for file in ("texts", "run/checkpoint"):  # the set, and where it ended if its start was chosen
            ours, theirs = (read_tensors(folder / f"{file}.safetensors") for folder in (out / record["set"], hand))
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        seen = read(encoded, made) if read else made
        row = api.evaluate(seen, heads_data, seeds=2, student=study.student_recipe, seed=3)
        assert {name: record[name] for name in METRICS} == {name: getattr(row, name) for name in METRICS}


def test_a_finished_table_is_drawn_again_without_its_experts(heads_data, tmp_path):
    study, out = read_study(recipe(tmp_path, [MDM])), tmp_path / "out"
    records = compare(study, out, heads_data.folder, InProcess())
    shutil.rmtree(out / "banks")
    assert compare(study, out, heads_data.folder, InProcess()) == records
    assert not (out / "banks").exists()


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": []}, "no list of rows"),
        ({"rows": [{"pairs": 4}]}, "row 1 names no method"),
        ({"rows": [{"method": "mdmm"}]}, "mdm"),
        ({"rows": [{"method": "mdm", "settings": {"alhpa": 1}}]}, "alpha"),
        ({"rows": [{"method": "random", "pairs": 1}]}, "at least 2"),
        ({"rows": [{"method": "random", "texts": "nearst"}]}, "nearest"),
        ({"sedes": 3}, "seeds"),
        ({"student": {"epoch": 3}}, "epochs"),
        ({"protocol": "mdm"}, "full"),
        ({"rows": [{"method": "mdm", "settings": {"teacher": "mergd"}}]}, "merged"),
        ({"rows": [{"method": "mdm", "settings": {"image_lr": "fast"}}]}, "must be a number"),
        ({"rows": [{"method": "rehearsal", "settings": {"extra_encoders": "efficientnet_lite1"}}]}, "must be a list"),
        (
            {"rows": [{"method": "rehearsal", "settings": {"extra_encoders": [3]}}]},
            "each of .*extra_encoders must be a text, not 3",
        ),
        (
            {"rows": [{"method": "rehearsal", "settings": {"alternate_initial_images": "off"}}]},
            "alternate_initial_images must be true or false, not 'off'",
        ),
        ({"rows": [{"method": "rehearsal", "settings": {"inner_epochs": 2.5}}]}, "must be a whole number, not 2.5"),
        (
            {"rows": [{"method": "rehearsal", "settings": {"inner_epochs": math.inf}}]},
            "must be a whole number, not inf",
        ),
        ({"rows": [{"method": "rehearsal", "settings": {"inner_epochs": True}}]}, "must be a whole number, not True"),
        ({"rows": [{"method": "random", "pairs": []}]}, "row 1: pairs is an empty list"),
        ({"rows": [{"method": "mdm", "experts": 0}]}, "experts must be at least 1"),
        ({"rows": [{"method": "mdm", "student": {"imag": "x"}}]}, "image"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"towers": None}, "mapping"),
        ({"rows": [{"method": "mdm", "published": "kernel/cordal"}]}, "kernel/chordal"),
    ],
)
def test_a_wrong_recipe_is_said_before_anything_is_computed(tmp_path, change, message):
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**BASE, "rows": [{"method": "random"}], **change}))
    with pytest.raises(PairstillError, match=message):
        read_study(path)


@pytest.mark.parametrize("path", sorted((ROOT / "recipes/compare").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_study_that_comes_with_the_project_can_be_read(path):
    study = read_study(path)
    assert len(study.entries) > 3
    assert len({(entry.label, entry.pairs) for entry in study.entries}) == len(study.entries)


def test_numbers_that_yaml_takes_for_texts_are_numbers(tmp_path):
    plain, odd = {"image_lr": 100, "iterations": 100}, {"image_lr": "1e2", "iterations": "1e2"}
    settings = [plain, odd, {"image_lr": 100.0, "iterations": 100.0}]
    study = read_study(recipe(tmp_path, [{"method": "mdm", "settings": s} for s in settings], student={"lr": "1e-2"}))
    assert study.student_recipe.lr == 0.01
    jobs = [Job(entry, study, tmp_path, "data", "students", tmp_path, tmp_path) for entry in study.entries]
    assert len({job.key() for job in jobs}) == 1
    assert [type(job.entry.all_settings().iterations) for job in jobs] == [int] * 3


def test_data_that_nobody_names_is_asked_for(tmp_path):
    with pytest.raises(PairstillError, match="--data"):
        compare(read_study(recipe(tmp_path, [{"method": "random"}])), tmp_path / "out")


def test_the_first_experts_of_a_bank_are_a_bank(heads_bank):
    part = heads_bank.first(2)
    assert part.experts == [0, 1]
    rows = [i for i, row in enumerate(heads_bank.checkpoints) if row.expert < 2]
    assert torch.equal(part.gram, heads_bank.gram[:, rows][:, :, rows])
    assert part.fingerprint() != heads_bank.fingerprint()
    assert Bank.open(heads_bank.folder).first(None).experts == heads_bank.experts
    with pytest.raises(PairstillError, match="not 9"):
        heads_bank.first(9)


def test_nearest_captions_are_read_by_the_students_encoder(heads_data, tmp_path):
    api.distill(heads_data, tmp_path / "set", "random", 4)
    made, encoded = load(tmp_path / "set"), heads_data.encoded()
    same = with_nearest_captions(encoded, made)
    torch.testing.assert_close(same.texts, made.texts)  # a real pair's nearest caption is its own
    assert torch.equal(same.images, made.images)


def test_memory_is_that_of_the_process_that_made_the_set(heads_data, tmp_path):
    api.distill(heads_data, tmp_path / "set", "random", 4)
    events = tmp_path / "set/run/events.jsonl"
    assert cost_of(events.parent, load(tmp_path / "set"))["peak_mib"] > 50
    done = json.loads(events.read_text().splitlines()[-1])
    events.write_text(json.dumps({**done, "peak_mib": 7}) + "\n")
    assert cost_of(events.parent, load(tmp_path / "set"))["peak_mib"] == 7


def test_seconds_per_iteration_count_both_kinds_that_alternate_and_no_pause():
    steps = list(itertools.accumulate([3.0, 1.0] * 10))
    assert seconds_per_iteration(steps) == 2
    assert seconds_per_iteration([*steps[:9], *(second + 500 for second in steps[9:])]) == 2
    assert seconds_per_iteration([5.0, 6.5]) == 1.5
    assert seconds_per_iteration([5.0]) is None


def test_published_figures_stand_beside(tmp_path):
    rows = [{"method": "mdm"}, {"method": "tesla"}, {"method": "mdm", "label": "x", "published": "kernel/chordal"}]
    study = read_study(recipe(tmp_path, [*rows, {"method": "mdm", "label": "y"}], published="flickr8k"))
    means = [study.published_mean(entry) for entry in study.entries]
    assert means == [21.9, 9.7, 21.5, None]
    record = {"label": "mdm", "method": "mdm", "pairs": 100, "mean": 17.0, "mean_std": 0.5}
    record |= {f"{way}{k}": 1.0 for way in ("ir", "tr") for k in (1, 5, 10)}
    lines = as_markdown(study, [{**record, "published_mean": mean} for mean in means]).splitlines()
    assert lines[-4].endswith("17.0 ± 0.5 | 21.9 |")
    assert lines[-1].endswith("17.0 ± 0.5 |  |")


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


def test_a_lock_makes_others_wait(tmp_path):
    order = []

    def other():
        with locked(tmp_path / "a.lock"):
            order.append("other")

    with locked(tmp_path / "a.lock"):
        thread = threading.Thread(target=other)
        thread.start()
        time.sleep(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "other"]
