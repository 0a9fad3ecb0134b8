import subprocess
import sys
import threading
import time

import pytest
import torch

from pairstill.errors import PairstillError
from pairstill.runtime import files
from pairstill.runtime.files import (
    atomic,
    digest_of,
    digest_of_items,
    digest_of_tensors,
    held_alone,
    locked,
    read_json,
    remove,
    sha256,
    write_json,
    write_text,
)
from tests.data.test_captions import SAID


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


@pytest.mark.crash
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


def test_a_digest_of_items_is_that_of_their_list():
    for items in ([], SAID, [3, 1, 2], [{"b": 1, "a": [2]}]):
        assert digest_of_items(iter(items)) == digest_of(items)
