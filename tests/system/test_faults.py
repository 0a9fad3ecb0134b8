"""What happens around a run: folders that can't be written, a disk that is full, another run in the same folder."""

import fcntl
import json
import os
import shlex
import signal
import tempfile
import time

import pytest

from tests.conftest import write_shapes
from tests.support.forking import Commands
from tests.support.killing import made

pytestmark = [pytest.mark.crash, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]

TINY = "--towers.image test_efficientnet@random --towers.image-size 32 --towers.embed-dim 16 --workers 0"
SHORT = (
    "--settings.inner-epochs 3 --settings.student-width 8 --settings.real-batch 16 --settings.views 0 "
    "--student.epochs 2"
)
STAGES = {
    "prepare": (f"prepare source {TINY} --out", "busy.lock"),
    "experts": ("experts data --count 2 --recipe.epochs 2 --recipe.batch-size 16 --out", "run/busy.lock"),
    "distill": (f"distill data --pairs 4 --settings.iterations 4 {SHORT} --resume --out", "run/busy.lock"),
}
"""A command, and the file in its folder that it holds while it is at work."""

STUDY = "towers: {image: test_efficientnet@random, image_size: 32, embed_dim: 16}\nrows: [{method: random, pairs: 4}]\n"


@pytest.fixture(scope="module")
def commands():
    with Commands() as started:
        yield started


@pytest.fixture(scope="module")
def place(commands, tmp_path_factory):
    """A folder with a source, what was prepared of it, and a set, in which nothing can be written any more."""
    folder = tmp_path_factory.mktemp("faults")
    write_shapes(folder / "source", 40)
    (folder / "study.yaml").write_text(STUDY)
    (folder / "locked").mkdir()
    for line in (f"prepare source --out data {TINY}", "distill data --out set --method random --pairs 4"):
        code, output = go(commands, folder, line)
        assert code == 0, output
    everything = [folder, *folder.rglob("*")]
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield folder
    for path in everything:
        path.chmod(0o755)


@pytest.fixture(scope="module")
def straight(place, commands, tmp_path_factory):
    """What each stage makes when nothing disturbs it."""
    folder = tmp_path_factory.mktemp("straight")
    for stage, (line, _) in STAGES.items():
        code, output = go(commands, place, f"{line} {folder / stage / 'made'}")
        assert code == 0, output
    return {stage: made(folder / stage) for stage in STAGES}


def words(folder, line):
    """A command line, with the names of what is in the folder as paths."""
    names = {"source", "data", "set", "study.yaml", "locked"}
    return [str(folder / word) if word.split("/")[0] in names else word for word in shlex.split(line)]


def go(commands, folder, line):
    """Exit code and output of a command, for which rights count, whoever runs it."""
    with tempfile.NamedTemporaryFile() as output:
        return commands.run(*words(folder, line), output=output.name, plain=True)


@pytest.mark.parametrize(
    ("line", "where"),
    [
        (f"prepare source --out locked/data {TINY}", "locked/data"),
        ("experts data --out locked/bank --count 1 --recipe.epochs 1", "locked/bank"),
        ("distill data --out locked/set --method random --pairs 4", "locked/set"),
        (f"distill data --out locked/set --pairs 4 --settings.iterations 1 {SHORT}", "locked/set"),
        ("compare study.yaml --data data --out locked", "locked/study.json"),
        ("report set", "set/report.html"),
        ("train set --data data --out locked/student --student.epochs 1", "locked/student"),
        *((f"export set --out locked/{form} --to {form}", f"locked/{form}") for form in ("hf", "webdataset", "folder")),
    ],
)
def test_a_read_only_folder_is_said(line, where, place, commands):
    code, output = go(commands, place, line)
    assert code == 2, output
    assert "Traceback" not in output
    error = next(line for line in output.splitlines() if line.startswith("error:"))
    assert str(place / where) in error and "Permission denied" in error
    assert not list((place / "locked").iterdir())  # a comparison's rows, in processes of their own, were not begun


def test_what_only_reads_works_in_a_read_only_folder(place, commands):
    os.utime(place / "source/000.png")  # the images are read again, and that this was done can't be noted
    code, output = go(commands, place, "evaluate set --data data --seeds 1 --student.epochs 1 --json")
    assert code == 0 and '"mean"' in output, output


def is_held(lock):
    """Whether a run holds its folder."""
    if not lock.exists():
        return False
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def stopped_at_work(commands, folder, line, lock):
    """Start a command, and hold it still as soon as it has its folder."""
    process = commands.start(*words(folder, line), output=os.devnull)
    end = time.monotonic() + 60
    while not is_held(lock):
        assert time.monotonic() < end
        time.sleep(0.002)
    os.kill(process, signal.SIGSTOP)
    assert is_held(lock), "it was done before it could be held"
    return process


@pytest.mark.slow
def test_a_second_run_is_refused_and_the_first_is_not_disturbed(place, straight, commands, tmp_path):
    firsts, seconds = {}, {}
    for stage, (line, lock) in STAGES.items():
        held = tmp_path / stage / "made" / lock
        held.parent.mkdir(parents=True)
        firsts[stage] = stopped_at_work(commands, place, f"{line} {tmp_path / stage / 'made'}", held)
    for stage, (line, _) in STAGES.items():
        output = tmp_path / stage / "second.txt"
        seconds[stage] = commands.start(*words(place, f"{line} {tmp_path / stage / 'made'}"), output=output)
    for stage, process in seconds.items():
        assert commands.wait(process) == 2
        said = (tmp_path / stage / "second.txt").read_text()
        assert "error: another run is at work in" in said and "choose another --out" in said
    for stage, process in firsts.items():
        os.kill(process, signal.SIGCONT)
        assert commands.wait(process) == 0
        assert made(tmp_path / stage) == straight[stage]


def test_a_full_disk_is_said_and_the_run_goes_on_when_there_is_room(place, straight, commands, tmp_path):
    disk, output = tmp_path / "disk", tmp_path / "output.txt"
    disk.mkdir()
    rooms = {"prepare": 20_000, "experts": 40_000, "distill": 120_000}
    lines = {stage: f"{STAGES[stage][0]} {disk / stage / 'made'}" for stage in rooms}
    for form in ("hf", "webdataset", "folder"):
        lines[form] = f"export set --to {form} --out {disk / form / 'made'}"
    lines["train"] = f"train set --data data --student.epochs 1 --out {disk}/train/made"
    lines["report"] = f"report set --out {disk}/report/made/page.html"
    asked = {stage: (words(place, line), rooms.get(stage, 12_288)) for stage, line in lines.items()}
    code = commands.fill_disk(disk, asked, output)
    said = output.read_text()
    if "no mounts of one's own" in said or "no disk in memory" in said:
        pytest.skip("no disk can be mounted here; runtime/test_files.py has a limit on the size of files instead")
    assert code == 0, said
    found = json.loads(said.splitlines()[-1])
    assert {stage: found[stage] for stage in straight} == straight
    assert all(found.values())
    assert not list(disk.iterdir())
