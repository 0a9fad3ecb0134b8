import shutil

import numpy as np
import pytest

from pairstill import api
from pairstill.errors import PairstillError
from pairstill.features.prepared_folder import open_prepared
from pairstill.runtime.files import read_manifest, write_manifest
from tests.conftest import TINY_HEADS, draw


def test_a_prepared_dataset_opens_as_it_was(own_shapes, tmp_path):
    made = api.prepare(str(own_shapes), tmp_path / "data", TINY_HEADS)
    opened = open_prepared(tmp_path / "data")
    assert opened.dataset.fingerprint == made.dataset.fingerprint
    assert opened.towers == TINY_HEADS
    assert list(opened.dataset.captions) == list(made.dataset.captions)
    assert np.array_equal(opened.dataset.links, made.dataset.links)


def test_other_options_in_the_same_folder_are_refused(own_shapes, tmp_path):
    api.prepare(str(own_shapes), tmp_path / "data", TINY_HEADS)
    with pytest.raises(PairstillError, match="holds another dataset or other options"):
        api.prepare(str(own_shapes), tmp_path / "data", TINY_HEADS, limit=5)


@pytest.mark.parametrize("source", ["../shapes", "folder:../shapes"])
def test_a_relative_source_is_found_from_elsewhere(source, own_shapes, tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    api.prepare(source, "data", TINY_HEADS)
    monkeypatch.chdir(tmp_path)
    assert len(open_prepared("work/data").dataset.images) == 40


def test_a_picture_changed_since_is_refused(own_shapes, tmp_path):
    api.prepare(str(own_shapes), tmp_path / "data", TINY_HEADS)
    (own_shapes / "004.png").write_bytes(draw("red", "disc", "white", 999))
    with pytest.raises(PairstillError, match=r"changed since .* was prepared"):
        open_prepared(tmp_path / "data")


def test_a_picture_only_touched_is_fine(own_shapes, tmp_path):
    made = api.prepare(str(own_shapes), tmp_path / "data", TINY_HEADS)
    data = (own_shapes / "004.png").read_bytes()
    (own_shapes / "004.png").unlink()
    (own_shapes / "004.png").write_bytes(data)
    assert open_prepared(tmp_path / "data").dataset.fingerprint == made.dataset.fingerprint


def test_dropped_pictures_stay_dropped(own_shapes, tmp_path):
    (own_shapes / "002.png").write_bytes(b"no image")
    made = api.prepare(str(own_shapes), tmp_path / "data", TINY_HEADS, on_bad="skip")
    assert len(made.dataset.images) == 39
    opened = open_prepared(tmp_path / "data")
    assert len(opened.dataset.images) == 39
    assert opened.dataset.images.name(2).endswith("003.png")
    assert len(opened.encoded().split("train").images) == len(made.dataset.splits["train"])


def test_a_source_that_moved_is_said(own_shapes, tmp_path):
    api.prepare(str(own_shapes), tmp_path / "data", TINY_HEADS)
    shutil.move(own_shapes, tmp_path / "elsewhere")
    with pytest.raises(PairstillError, match="does not exist"):
        open_prepared(tmp_path / "data")


def test_a_newer_format_is_refused(own_shapes, tmp_path):
    api.prepare(str(own_shapes), tmp_path / "data", TINY_HEADS)
    path = tmp_path / "data/prepared.json"
    write_manifest(path, {**read_manifest(path), "format": 99})
    with pytest.raises(PairstillError, match="newer pairstill"):
        open_prepared(tmp_path / "data")
