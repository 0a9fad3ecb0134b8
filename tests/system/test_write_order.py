"""The order of writes, for a power cut between any two: content, flushed, then its name, flushed."""

import os
from pathlib import Path

import pytest

from pairstill import api
from pairstill.sets.distilled_set import load
from pairstill.sets.exports import FORMATS, export
from pairstill.show.report.page import write_report
from pairstill.training.training_recipe import Recipe
from tests.conftest import TINY_HEADS, write_shapes
from tests.support.distilling import distill
from tests.support.quick_settings import settings_of

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to name open files"),
]
NOT_PUBLISHED = {"events.jsonl", "scores.jsonl"}
"""Lines are added to these as things happen; a line that is lost is only not shown."""


@pytest.fixture
def calls(monkeypatch):
    """What was flushed and renamed, in order; a file's size says whether it was written before."""
    seen = []
    fsync, rename = os.fsync, os.replace

    def record_fsync(descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        fsync(descriptor)
        seen.append(("fsync", path, path.stat().st_size, path.stat().st_mtime_ns))

    def record_rename(source, target):
        status = Path(source).stat()
        rename(source, target)
        seen.append(("rename", Path(source).absolute(), Path(target).absolute(), status.st_size, status.st_mtime_ns))

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_rename)
    monkeypatch.setattr(Path, "replace", record_rename)
    return seen


def published(calls):
    """Every file that got its name after its whole content was flushed, and whose folder was flushed then."""
    found = set()
    for place, call in enumerate(calls):
        if call[0] == "rename":
            _, source, target, size, time = call
            assert ("fsync", source, size, time) in calls[:place], f"{target} was not flushed before it had its name"
            later = [other[1] for other in calls[place + 1 :] if other[0] == "fsync"]
            assert target.parent in later[:1], f"the folder of {target} was not flushed at once"
            found.add(target)
    return found


def files_in(folder):
    paths = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {path.absolute() for path in paths if path.name not in NOT_PUBLISHED}


def test_everything_that_is_written_is_flushed_before_it_has_its_name(calls, tmp_path):
    source = write_shapes(tmp_path / "source", 40)
    out = tmp_path / "out"
    data = api.prepare(str(source), out / "data", TINY_HEADS)
    api.train_experts(data, out / "bank", 2, Recipe(epochs=1, batch_size=16))
    distill(data, out / "set", "rehearsal", 4, settings=settings_of("rehearsal"))
    for form in FORMATS:
        export(out / "set", out / form, form)
    write_report(out / "set")
    api.train_student(load(out / "set"), data, out / "student", student=Recipe(epochs=1, batch_size=4))
    made = published(calls)
    assert files_in(out) - made == set()
    endings = {path.suffix for path in made}
    assert endings >= {".json", ".safetensors", ".npy", ".jsonl", ".yaml", ".md", ".parquet", ".tar", ".png", ".html"}
    names = [path.name for path in made]
    assert "checkpoint.safetensors" in names and "distilled.json" in names


def test_what_vouches_for_files_is_written_after_them(calls, heads_data, tmp_path):
    distill(heads_data, tmp_path / "set", "random", 4)
    api.train_experts(heads_data, tmp_path / "bank", 1, Recipe(epochs=2, batch_size=32))
    export(tmp_path / "set", tmp_path / "folder", "folder")
    order = [call[2] for call in calls if call[0] == "rename"]
    for folder, last in (("set", "distilled.json"), ("folder", "export.json"), ("bank", "bank.json")):
        inside = [path for path in order if path.is_relative_to(tmp_path / folder)]
        tensors = [place for place, path in enumerate(inside) if path.suffix in (".safetensors", ".png")]
        tensors = [place for place in tensors if inside[place].name not in ("gram.safetensors",)]
        assert max(place for place, path in enumerate(inside) if path.name == last) > max(tensors)
