"""The same tasks in this process, in local processes and on a real local Ray cluster, with workers that are killed."""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pairstill import api
from pairstill.errors import PairstillError
from pairstill.features import feature_cache, parallel_extraction
from pairstill.runtime.launchers import InProcess, OnRay, Processes, Task, launcher_named
from tests.conftest import TINY_RECIPE


def square(number):
    return number**2


def fail():
    raise PairstillError("this can't be done.")


def crash():
    raise RuntimeError("a bug")


def die_at_first(folder):
    """Killed in the first try; the second finds what the first left."""
    tries = len(list(folder.iterdir()))
    (folder / str(tries)).touch()
    if tries == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return tries


def die():
    os.kill(os.getpid(), signal.SIGKILL)


RAY = pytest.param("ray", marks=pytest.mark.slow)
"""To start a cluster takes some seconds."""


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two workers on this machine."""
    ray = pytest.importorskip("ray")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield OnRay(2)
    ray.shutdown()


@pytest.fixture(params=["here", "processes", RAY])
def launcher(request):
    if request.param == "ray":
        return request.getfixturevalue("cluster")
    return InProcess() if request.param == "here" else Processes(2)


def test_every_task_has_its_value_and_a_failed_one_does_not_stop_the_others(launcher):
    tasks = [Task("a", square, (3,)), Task("b", fail), Task("c", square, (4,))]
    found = {outcome.task.name: (outcome.value, outcome.error) for outcome in launcher.run(tasks)}
    assert found == {"a": (9, None), "b": (None, "this can't be done."), "c": (16, None)}


def test_an_answer_may_be_longer_than_a_pipe():
    (outcome,) = Processes(1).run([Task("long", bytes, (1 << 20,))])
    assert len(outcome.value) == 1 << 20


@pytest.mark.parametrize("alone", [False, True])
def test_processes_stay_for_the_next_task_unless_it_is_to_be_alone(alone):
    found = [outcome.value for outcome in Processes(1).run([Task(str(n), os.getpid, alone=alone) for n in range(3)])]
    assert len(set(found)) == (3 if alone else 1)
    assert os.getpid() not in found


def test_a_bug_is_told_by_its_name():
    (outcome,) = Processes(1).run([Task("bug", crash)])
    assert outcome.error == "RuntimeError: a bug"


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("kind", ["processes", "ray"])
def test_a_worker_that_dies_is_started_again(kind, request, tmp_path):
    launcher = request.getfixturevalue("cluster") if kind == "ray" else Processes(2)
    outcomes = {
        outcome.task.name: outcome
        for outcome in launcher.run([Task("a", die_at_first, (tmp_path,)), Task("b", square, (5,))])
    }
    assert outcomes["a"].value == 1
    assert outcomes["b"].value == 25


@pytest.mark.slow
@pytest.mark.crash
def test_a_task_that_kills_every_worker_is_given_up():
    (outcome,) = Processes(1).run([Task("deadly", die)])
    assert outcome.error == "its process was killed by signal 9 (out of memory?)"


@pytest.mark.slow
def test_experts_are_the_same_wherever_they_train(launcher, heads_data, heads_bank, tmp_path):
    bank = api.train_experts(heads_data, tmp_path / "bank", 3, TINY_RECIPE, launcher=launcher)
    assert [row.sha256 for row in sorted(bank.checkpoints, key=lambda row: row.file)] == [
        row.sha256 for row in heads_bank.checkpoints
    ]
    events = [json.loads(line) for line in (tmp_path / "bank/run/events.jsonl").read_text().splitlines()]
    assert sorted(event["expert"] for event in events) == [0, 1, 2]


def workers(kind):
    """The processes that a launcher started, by what they are called."""
    mark, found = b"ray::_on_worker" if kind == "ray" else b"spawn_main", []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if mark in (folder / "cmdline").read_bytes() and (kind == "ray" or parent == os.getpid()):
                found.append(int(folder.name))
    return found


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
@pytest.mark.parametrize("kind", ["processes", "ray"])
def test_an_expert_whose_worker_is_killed_keeps_its_epochs(kind, request, heads_data, tmp_path):
    launcher = request.getfixturevalue("cluster") if kind == "ray" else Processes(2)
    recipe = replace(TINY_RECIPE, epochs=15)
    straight = api.train_experts(heads_data, tmp_path / "straight", 2, recipe)
    bank, killed_at = tmp_path / "bank", []

    def kill():
        while not (bank / "expert-001/epoch-002.safetensors").exists():
            time.sleep(0.005)
        killed_at.append(time.time())
        for worker in workers(kind):
            os.kill(worker, signal.SIGKILL)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    made = api.train_experts(heads_data, bank, 2, recipe, launcher=launcher)
    thread.join()
    times = [(bank / f"expert-001/epoch-{epoch:03d}.safetensors").stat().st_mtime for epoch in (1, 15)]
    assert times[0] < killed_at[0] < times[1]  # killed in training, and what was trained is not trained again
    by_file = {row.file: row.sha256 for row in made.checkpoints}
    assert by_file == {row.file: row.sha256 for row in straight.checkpoints}


def test_the_command_says_what_it_needs():
    assert launcher_named("local", 2) == Processes(2)
    assert launcher_named("ray", 4, "auto") == OnRay(4, "auto")
    with pytest.raises(PairstillError, match="--jobs must be at least 1, not 0"):
        launcher_named("local", 0)
    with pytest.raises(PairstillError, match="add --launcher ray"):
        launcher_named("local", 2, "auto")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["processes", "ray"])
def test_features_are_the_same_wherever_they_are_computed(kind, request, heads_data, tmp_path, monkeypatch):
    """Two parts of 160 images, of which the first was there before, and three of 320 captions."""
    launcher = request.getfixturevalue("cluster") if kind == "ray" else Processes(2)
    monkeypatch.setattr(parallel_extraction, "PART_ROWS", 128)
    copy, changed = replace(heads_data, folder=tmp_path), []
    first = parallel_extraction._extraction("images", copy, heads_data.towers, 0, "cpu").part(0, 128)
    first.matrix()
    written, forget = first.path.stat().st_mtime_ns, feature_cache.Extraction.forget

    def look_and_forget(part):
        changed.append(part.path.stat().st_mtime_ns)
        forget(part)

    monkeypatch.setattr(feature_cache.Extraction, "forget", look_and_forget)
    parallel_extraction.extract(copy, heads_data.towers, 0, "cpu", launcher)
    assert len(changed) == 5
    assert written in changed
    made = {path.name: path.read_bytes() for path in (tmp_path / "features").glob("*.npy")}
    assert {name.split("-")[0] for name in made} == {"images", "texts"}
    assert all((heads_data.folder / "features" / name).read_bytes() == content for name, content in made.items())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "what"), [("processes", "set"), ("ray", "set"), ("ray", "full")])
def test_students_score_the_same_wherever_they_train(kind, what, request, heads_data, tmp_path):
    launcher = request.getfixturevalue("cluster") if kind == "ray" else Processes(2)
    pairs = "full" if what == "full" else api.distill(heads_data, tmp_path / "set", "random", 8)
    rows = [
        api.evaluate(pairs, heads_data, seeds=2, student=TINY_RECIPE, launcher=where)
        for where in (InProcess(), launcher)
    ]
    assert replace(rows[0], seconds=0.0) == replace(rows[1], seconds=0.0)
