import shutil
from dataclasses import replace

import pytest

from pairstill.errors import PairstillError
from pairstill.features import parallel_extraction
from pairstill.features.parallel_extraction import extract
from pairstill.runtime.launchers import Outcome


class LastFirst:
    """Runs tasks in this process, the last one first, but for one that fails."""

    def __init__(self, failing=None):
        self.failing, self.names = failing, []

    def run(self, tasks, started=None):
        self.names = [task.name for task in tasks]
        for task in reversed(tasks):
            failed = task.name == self.failing
            yield Outcome(task, error="no memory.") if failed else Outcome(task, task.do(*task.arguments))


@pytest.fixture
def without_image_features(heads_data, tmp_path, monkeypatch):
    """The prepared data with its texts' features, and parts of 64 rows: three of 160 images."""
    monkeypatch.setattr(parallel_extraction, "PART_ROWS", 64)
    (tmp_path / "features").mkdir()
    for path in (heads_data.folder / "features").glob("texts-*"):
        shutil.copy(path, tmp_path / "features")
    return replace(heads_data, folder=tmp_path)


def features_of(folder):
    return {path.name: path.read_bytes() for path in (folder / "features").glob("images-*.npy")}


def test_parts_that_come_in_any_order_are_joined_to_the_same_bytes(without_image_features, heads_data, tmp_path):
    launcher = LastFirst()
    extract(without_image_features, heads_data.towers, 0, "cpu", launcher)
    assert launcher.names == [f"image features, 32 px, rows {begin} on" for begin in (0, 64, 128)]
    made = features_of(tmp_path)
    assert len(made) == 1  # the parts are gone
    assert made.items() <= features_of(heads_data.folder).items()
    launcher.names = []
    extract(without_image_features, heads_data.towers, 0, "cpu", launcher)
    assert launcher.names == []  # what is there is not computed again


def test_a_part_that_fails_is_said_and_the_finished_ones_are_kept(without_image_features, heads_data, tmp_path):
    launcher = LastFirst("image features, 32 px, rows 64 on")
    with pytest.raises(PairstillError, match=r"rows 64 on: no memory\. Finished parts are kept\."):
        extract(without_image_features, heads_data.towers, 0, "cpu", launcher)
    (left,) = features_of(tmp_path)
    assert left.endswith("-rows-128-160.npy")
