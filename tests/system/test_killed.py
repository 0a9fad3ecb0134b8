"""SIGKILL at random moments, five times in each stage: the run that goes on makes the same bytes."""

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]


@pytest.mark.parametrize("stage", ["prepare", "experts", "distil", "compare"])
def test_a_stage_killed_five_times_ends_in_the_same_bytes(stage, shapes, heads_data, tmp_path):
    source = shapes if stage == "prepare" else heads_data.folder
    command = [sys.executable, "-m", "tests.support.killing", stage, str(source), str(tmp_path / "work"), "5", "0"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("5 kills")
