"""A dataset that changes between two stages: every later stage refuses it, whatever changed."""

import json
import os
import shutil

import pytest

from pairstill import api
from pairstill.errors import PairstillError
from pairstill.features.prepared_folder import open_prepared
from pairstill.runtime.files import read_manifest, write_manifest
from pairstill.training.training_recipe import Recipe
from tests.conftest import TINY_HEADS, draw, write_shapes

QUICK = Recipe(epochs=1, batch_size=16)


def rows_of(source):
    return [json.loads(line) for line in (source / "metadata.jsonl").read_text().splitlines()]


def write_rows(source, rows):
    (source / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def picture_replaced(source):
    (source / "004.png").write_bytes(draw("red", "disc", "white", 999))


def picture_replaced_by_one_of_the_same_size_and_time(source):
    path = source / "004.png"
    data, status = bytearray(path.read_bytes()), path.stat()
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def caption_changed(source):
    rows = rows_of(source)
    rows[4]["captions"][0] = "something else"
    write_rows(source, rows)


def split_changed(source):
    rows = rows_of(source)
    rows[4]["split"] = {"train": "test", "test": "train", "val": "train"}[rows[4]["split"]]
    write_rows(source, rows)


def picture_removed(source):
    (source / "004.png").unlink()


def row_removed(source):
    write_rows(source, rows_of(source)[:-1])


def row_added(source):
    (source / "new.png").write_bytes(draw("red", "disc", "white", 999))
    write_rows(source, [*rows_of(source), {"file_name": "new.png", "captions": ["new"], "split": "train"}])


CHANGES = [
    picture_replaced,
    picture_replaced_by_one_of_the_same_size_and_time,
    caption_changed,
    split_changed,
    picture_removed,
    row_removed,
    row_added,
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A source, and each stage's result on it."""
    folder = tmp_path_factory.mktemp("stages")
    data = api.prepare(str(write_shapes(folder / "source", 40)), folder / "data", TINY_HEADS)
    api.train_experts(data, folder / "bank", 2, QUICK)
    api.distill(data, folder / "set", "kmeans", 4)
    return folder


@pytest.mark.parametrize(("change", "dropped"), [*((change, False) for change in CHANGES), (row_removed, True)])
def test_every_stage_after_prepare_refuses_it(change, dropped, made, tmp_path):
    source, data = made / "source", made / "data"
    if dropped:
        source, data = write_shapes(tmp_path / "source", 40), tmp_path / "data"
        (source / "002.png").write_bytes(b"no image")
        api.prepare(str(source), data, TINY_HEADS, on_bad="skip")
    kept = tmp_path / "kept"
    shutil.copytree(source, kept, copy_function=shutil.copy2)
    try:
        change(source)
        refused = pytest.raises(PairstillError, match=r"changed since .* was prepared|missing|No such file")
        with refused:
            api.train_experts(data, tmp_path / "bank", 2, QUICK)
        with refused:
            api.distill(data, tmp_path / "set", "kmeans", 4)
        with refused:
            api.evaluate(made / "set", data, seeds=1, student=QUICK)
        with refused:
            api.prepare(str(source), data, TINY_HEADS, **({"on_bad": "skip"} if dropped else {}))
        assert not (tmp_path / "bank").exists() and not (tmp_path / "set").exists()
    finally:
        for path in source.iterdir():
            path.unlink()
        shutil.copytree(kept, source, dirs_exist_ok=True, copy_function=shutil.copy2)
    assert open_prepared(data)


def test_experts_and_runs_of_the_old_dataset_are_refused_with_the_new_one(made, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(made / "source", source)
    picture_replaced(source)
    data = api.prepare(str(source), tmp_path / "data", TINY_HEADS)
    with pytest.raises(PairstillError, match="was made from another dataset"):
        api.distill(data, tmp_path / "set", "mdm", 4, made / "bank")
    with pytest.raises(PairstillError, match="was made from another dataset"):
        api.train_experts(data, made / "bank", 3, QUICK)
    with pytest.raises(PairstillError, match=r"started with other settings.*dataset: "):
        api.distill(data, made / "set", "kmeans", 4, resume=True)


def test_a_dataset_prepared_before_captions_were_watched_still_opens(made, tmp_path):
    shutil.copytree(made / "data", tmp_path / "data")
    record = read_manifest(tmp_path / "data/prepared.json")
    del record["annotations"]
    write_manifest(tmp_path / "data/prepared.json", record)
    assert open_prepared(tmp_path / "data")
