"""The tutorial, as a newcomer goes through it: every command and every part in Python, in its order."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?ms)^```(\w*)\n(.*?)^```", PAGE)


def shape(line):
    """A line without its figures, which differ from machine to machine."""
    return " ".join(re.sub(r"\d[\d.,]*", "0", line).split())


@pytest.mark.slow
def test_every_step_of_the_tutorial_works_and_shows_what_it_says(tmp_path):
    shown: list[str] = []
    for kind, body in BLOCKS:
        if kind == "text":
            missing = {shape(line) for line in body.splitlines()} - {shape(line) for line in shown}
            assert not missing
            continue
        commands = [shlex.split(line) for line in body.splitlines()]
        if kind == "python":
            (tmp_path / "part.py").write_text(body, encoding="utf-8")
            commands = [[sys.executable, "part.py"]]
        for command in commands:
            program = [str(Path(sys.executable).with_name("pairstill"))] if command[0] == "pairstill" else [command[0]]
            done = subprocess.run([*program, *command[1:]], cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            shown += done.stdout.splitlines()
    assert (tmp_path / "work/set/report.html").exists()
