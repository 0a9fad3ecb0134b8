from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pairstill.data.decoding import load_pixels
from pairstill.data.sources import SourceSpec, open_source
from pairstill.data.sources.hub import expand_braces
from pairstill.errors import PairstillError
from tests.data.sources.conftest import Parquet, Shard, opened, picture, sizes


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("cell", ["bytes", "struct"])
def test_parquet_with_split_column(tmp_path: Path, parquet: Parquet, cell: str, streaming: bool) -> None:
    parts = ["train"] * 4 + ["val"] + ["test"]
    rows = [
        {
            "image": picture(row) if cell == "bytes" else {"bytes": picture(row), "path": None},
            "captions": ["shared", f"only {row}"],
            "split": part,
        }
        for row, part in enumerate(parts)
    ]
    dataset = opened(parquet("all.parquet", rows), tmp_path, streaming=streaming)
    assert sizes(dataset) == {"train": 4, "val": 1, "test": 1}
    assert list(dataset.captions) == ["shared", *(f"only {row}" for row in range(6))]
    assert dataset.links[dataset.links[:, 1] == 0, 0].tolist() == list(range(6))
    assert [dataset.images.read(row) for row in range(6)] == [picture(row) for row in range(6)]
    assert dataset.images.name(2).endswith("row 2")


@pytest.mark.parametrize("streaming", [False, True])
def test_parquet_folder_with_own_splits(tmp_path: Path, parquet: Parquet, streaming: bool) -> None:
    for split, start, count in (("train", 0, 6), ("validation", 10, 2), ("test", 20, 3)):
        rows = [{"jpg": picture(start + n), "caption_0": f"a{n}", "caption_1": f"b{n}"} for n in range(count)]
        parquet(f"set/data/{split}-00000-of-00001.parquet", rows)
    dataset = opened(tmp_path / "set", tmp_path, streaming=streaming)
    assert sizes(dataset) == {"train": 6, "val": 2, "test": 3}
    assert dataset.images.read(int(dataset.splits["test"][1])) == picture(21)
    assert {dataset.captions[row] for row in dataset.split("val").captions} == {"a0", "b0", "a1", "b1"}


def test_hugging_face_image_feature_and_missing_split(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features({"photo": datasets.Image(), "text": datasets.Value("string")})
    for split, start in (("train", 0), ("test", 50)):
        content = {
            "photo": [{"bytes": picture(start + n), "path": None} for n in range(10)],
            "text": list("abcdefghij"),
        }
        datasets.Dataset.from_dict(content, features).to_parquet(tmp_path / f"{split}.parquet")
    dataset = opened(f"{tmp_path}/*.parquet", tmp_path, val_fraction=0.2)
    assert sizes(dataset) == {"train": 6, "val": 4, "test": 10}
    again = pickle.loads(pickle.dumps(dataset.images))
    assert len(pickle.dumps(dataset.images)) < 20_000 and again.read(11) == dataset.images.read(11)
    assert again.signature() == dataset.images.signature()


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("ending", ["txt", "json"])
def test_webdataset_shards(tmp_path: Path, shard: Shard, ending: str, streaming: bool) -> None:
    shard("s-00.tar", range(6), ending)
    shard("s-01.tar", range(6, 12), ending)
    dataset = opened(tmp_path / "s-{00..01}.tar", tmp_path, streaming=streaming)
    assert sum(sizes(dataset).values()) == 12 and min(sizes(dataset).values()) >= 1
    assert dataset.captions[0] == "caption 0" and dataset.images.read(11) == picture(11)
    captions = dataset.links[dataset.links[:, 0] == 5, 1]
    assert [dataset.captions[row] for row in captions] == ["caption 5"] + (["b"] if ending == "json" else [])


def test_pixels_in_workers(tmp_path: Path, shard: Shard) -> None:
    dataset = opened(shard("s.tar", range(8)), tmp_path)
    batches = list(load_pixels(dataset.images, range(8), 4, workers=2, batch=3))
    assert [int(pixels[0, 0, 0]) for batch in batches for pixels in batch] == list(range(8))


def test_empty_cells_are_left_to_the_check(tmp_path: Path, parquet: Parquet) -> None:
    rows = [{"image": picture(row), "caption": f"c{row}"} for row in range(6)]
    rows[2] = {"image": None, "caption": None}
    path = parquet("all.parquet", rows)
    dataset = opened(path, tmp_path)
    assert dataset.captions[2] == ""
    with pytest.raises(PairstillError, match="row 2: there is no image"):
        dataset.images.read(2)
    with pytest.raises(PairstillError, match="there is no image"):
        opened(path, tmp_path, streaming=True)
    assert opened(path, tmp_path, streaming=True, on_bad="skip").images.read(2) == b""


@pytest.mark.parametrize(("name", "streaming"), [("x.parquet", False), ("x.parquet", True), ("x.tar", False)])
def test_broken_files(tmp_path: Path, name: str, streaming: bool) -> None:
    (tmp_path / name).write_bytes(b"this is neither" * 100)
    with pytest.raises(PairstillError, match=rf"{name} could not be opened .*sound \.(parquet|tar) file"):
        opened(tmp_path / name, tmp_path, streaming=streaming)


def test_braces() -> None:
    assert expand_braces("a-{08..10}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar"]
    assert expand_braces("{x,y}-{0..1}") == ["x-0", "x-1", "y-0", "y-1"]


def test_missing_shard_is_named(tmp_path: Path, shard: Shard) -> None:
    shard("s-0.tar", range(3))
    with pytest.raises(PairstillError, match=r"there is no .*s-1\.tar"):
        opened(tmp_path / "s-{0..1}.tar", tmp_path)


@pytest.mark.parametrize("settings", ["", ", limit=3"])
def test_no_network_says_what_was_tried(tmp_path: Path, settings: str) -> None:
    code = (
        "from pairstill.data.sources import *\n"
        "from pairstill.errors import PairstillError\n"
        "try:\n"
        f"    open_source(SourceSpec('nobody/nothing'{settings}))\n"
        "except PairstillError as error:\n"
        "    print(error)\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "nobody/nothing could not be opened (ConnectionError" in run.stdout
    assert "HF_HUB_OFFLINE is set" in run.stdout and "parquet:DIR" in run.stdout
    assert "no file or folder 'nobody/nothing' here" in run.stdout


@pytest.mark.parametrize(("settings", "streams"), [({}, False), ({"limit": 3}, True), ({"streaming": True}, True)])
def test_a_limit_streams_from_the_hub(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], streams: bool) -> None:
    asked: list[Any] = []

    def refuse(**arguments: Any) -> None:
        asked.append(arguments)
        raise ConnectionError

    monkeypatch.setattr("datasets.load_dataset", refuse)
    with pytest.raises(PairstillError, match="could not be opened"):
        open_source(SourceSpec("hf:owner/name:config", **settings))
    assert (asked[0]["path"], asked[0]["name"], asked[0]["streaming"]) == ("owner/name", "config", streams)
    assert "trust_remote_code" not in asked[0]


def test_truncated_tar_is_an_error(tmp_path: Path, shard: Shard) -> None:
    path = shard("s.tar", range(6))
    path.write_bytes(path.read_bytes()[: 512 * 9 + 100])
    with pytest.raises(PairstillError, match=r"s\.tar"):
        opened(path, tmp_path)
