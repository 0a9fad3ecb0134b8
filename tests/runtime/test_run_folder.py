import subprocess
import sys

import pytest
import torch

from pairstill.errors import PairstillError, unknown
from pairstill.runtime import files
from pairstill.runtime.files import (
    atomic,
    digest_of_tensors,
    held_alone,
    read_json,
    remove,
    sha256,
    write_json,
    write_text,
)
from pairstill.runtime.progress import duration, progress
from pairstill.runtime.run_folder import Run, read_events
from pairstill.runtime.seeds import derive, generator, global_seed


def test_a_checkpoint_comes_back_with_its_state(tmp_path):
    run = Run(tmp_path, {"a": 1})
    assert run.load_checkpoint() is None
    run.event("step", iteration=1)
    run.save_checkpoint({"x": torch.arange(3)}, {"done": 1})
    run.event("step", iteration=2)
    tensors, state = Run(tmp_path, {"a": 1}, resume=True).load_checkpoint()
    assert tensors["x"].tolist() == [0, 1, 2]
    assert state["done"] == 1
    assert [event["iteration"] for event in read_events(tmp_path)] == [1]


def test_a_damaged_checkpoint_is_said(tmp_path):
    run = Run(tmp_path, {})
    run.save_checkpoint({"x": torch.arange(3)}, {"done": 1})
    (tmp_path / "checkpoint.safetensors").write_bytes(b"rubbish")
    with pytest.raises(PairstillError, match=r"checkpoint.safetensors is damaged"):
        run.load_checkpoint()


@pytest.mark.parametrize("where", ["values", "state"])
def test_a_checkpoint_with_one_bit_changed_is_said(where, tmp_path):
    run = Run(tmp_path, {})
    run.save_checkpoint({"x": torch.arange(3)}, {"done": 1})
    path = tmp_path / "checkpoint.safetensors"
    data = bytearray(path.read_bytes())
    data[-1 if where == "values" else data.index(b"done") + 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(PairstillError, match=r"checkpoint.safetensors is damaged.* Delete it"):
        run.load_checkpoint()


def test_a_cut_last_event_is_left_out(tmp_path):
    run = Run(tmp_path, {})
    run.event("a")
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"kind": "b", "sec')
    assert [event["kind"] for event in read_events(tmp_path)] == ["a"]


def test_atomic_writes_all_or_nothing(tmp_path):
    path = tmp_path / "deep" / "file.json"
    write_json(path, {"a": "ä"})
    assert read_json(path) == {"a": "ä"}
    with pytest.raises(RuntimeError), atomic(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert read_json(path) == {"a": "ä"}
    assert [p.name for p in path.parent.iterdir()] == ["file.json"]


def test_a_folder_that_can_not_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PairstillError, match=r"could not write .*x.json"):
        write_json(tmp_path / "file" / "x.json", {})


def test_hashes(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256(tmp_path / "a").startswith("ba7816bf")
    with pytest.raises(PairstillError, match="does not exist"):
        sha256(tmp_path / "b")
    a = {"x": torch.arange(3), "y": torch.zeros(())}
    assert digest_of_tensors(a) == digest_of_tensors(dict(reversed(a.items())))
    assert digest_of_tensors(a) != digest_of_tensors({**a, "y": torch.ones(())})


def test_seeds_depend_on_every_part_of_their_path():
    seeds = {derive(0, "a"), derive(1, "a"), derive(0, "b"), derive(0, "a", 1), derive(0, "a", 2)}
    assert len(seeds) == 5
    assert torch.equal(torch.rand(3, generator=generator(1, "x")), torch.rand(3, generator=generator(1, "x")))


def test_the_global_generator_is_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with global_seed(1, "x"):
        torch.rand(10)
    assert torch.equal(before, torch.get_rng_state())


def test_durations_read_well():
    assert [duration(s) for s in (2.34, 42, 185, 7800)] == ["2.3 s", "42 s", "3 min 05 s", "2 h 10 min"]


def test_progress_in_a_log_ends_with_a_line(capsys):
    with progress("work", 3) as advance:
        advance(2)
        advance(1, note="well")
    assert "work: 3/3 in" in capsys.readouterr().err


def test_unknown_without_a_near_name_still_lists():
    assert str(unknown("thing", "zzz", ["b", "a"])) == "unknown thing 'zzz'. Known: a, b."


DISK = """
import resource, sys, torch
from pathlib import Path
from pairstill.cli import commands, main as cli
from pairstill.features import feature_cache
from pairstill.runtime import files
from pairstill.runtime.run_folder import Run, read_events
import numpy as np
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
folder = Path(sys.argv[2])
def tensors(): files.write_tensors(folder / "t.safetensors", {"x": torch.zeros(100_000)})
def text(): files.write_text(folder / "t.txt", "x" * 200_000)
def checkpoint(): Run(folder / "run", {}).save_checkpoint({"x": torch.zeros(100_000)}, {})
def zeros(start): yield np.zeros((1000, 1000))
def matrix(): feature_cache.cached_matrix(folder / "m.npy", (1000, 1000), "float32", zeros, "m")
commands.ls = lambda what=None: globals()[sys.argv[1]]()
sys.exit(cli.main(["ls"]))
"""


@pytest.mark.parametrize("kind", ["tensors", "text", "checkpoint", "matrix"])
def test_a_disk_that_takes_no_more_is_said_and_nothing_is_left(kind, tmp_path):
    """A limit on the size of files stands for a full disk: the system refuses the write in the same way."""
    done = subprocess.run(
        [sys.executable, "-c", DISK, kind, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "error: could not write" in done.stderr
    assert "Traceback" not in done.stderr
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left <= {"run.json", "config.yaml", "m.partial.npy", "m.lock"}


def test_what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    path = tmp_path / "a.json"
    left = tmp_path / ".a.json.killed12.tmp"
    left.write_text("half")
    with atomic(path) as living:
        living.write_text("1")
        write_text(path, "2")
        assert living.exists()
        assert not left.exists()
    assert path.read_text() == "1"
    left.write_text("half")
    remove(path)
    assert list(tmp_path.iterdir()) == []


def test_a_second_run_in_a_folder_is_refused_and_the_next_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SECONDS_TO_LEAVE", 0.2)
    with held_alone(tmp_path), pytest.raises(PairstillError, match="another run is at work"), held_alone(tmp_path):
        pass
    with held_alone(tmp_path):
        pass
