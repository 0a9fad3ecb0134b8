from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pairstill.data.sources import SourceSpec, open_source
from pairstill.errors import PairstillError

Write = Callable[..., None]


def jsonl(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_json_lines_with_lists_splits_and_shared_texts(tmp_path: Path, pictures: Write) -> None:
    pictures("", ["a.png", "b.png", "c.png"])
    rows = [
        {"file_name": "a.png", "captions": ["red", "round"], "split": "train"},
        {"file_name": "b.png", "captions": ["red"], "split": "validation"},
        {"file_name": "c.png", "captions": ["green"], "split": "test"},
        {"file_name": "a.png", "captions": ["one more", "red"], "split": "train"},
    ]
    jsonl(tmp_path / "metadata.jsonl", rows)
    dataset = open_source(SourceSpec(str(tmp_path)))
    assert list(dataset.captions) == ["red", "round", "one more", "green"]
    assert dataset.links.tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [2, 3]]
    assert dataset.split("val").captions.tolist() == [0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metadata.csv", "filename,text\na.png,one\na.png,two\nb.png,three\nc.png,four\n"),
        ("captions.csv", "\ufeffimage,caption\na.png,one\na.png,two\nb.png,three\nc.png,four\n"),
        ("captions.txt", "image,caption\na.png,one\na.png,two\nb.png,three\nc.png,four\n"),
        (
            "captions.csv",
            "image_name| comment_number| comment\na.png|0|one\na.png|1|two\nb.png|0|three\nc.png|0|four\n",
        ),
    ],
)
def test_csv_tables(tmp_path: Path, pictures: Write, name: str, text: str) -> None:
    pictures("Images", ["a.png", "b.png", "c.png"])
    (tmp_path / name).write_text(text)
    dataset = open_source(SourceSpec(str(tmp_path)))
    assert list(dataset.captions) == ["one", "two", "three", "four"]
    assert dataset.links.tolist() == [[0, 0], [0, 1], [1, 2], [2, 3]]
    assert sorted(len(rows) for rows in dataset.splits.values()) == [1, 1, 1]


def test_quoted_commas_and_chosen_columns(tmp_path: Path, pictures: Write) -> None:
    pictures("p", ["a.png", "b.png", "c.png"])
    text = 'pic,alt,part\na.png,"a, b",train\nb.png,"say ""hi""",dev\nc.png,c,test\n'
    (tmp_path / "metadata.csv").write_text(text)
    columns = {"image_column": "pic", "caption_column": "alt", "split_column": "part"}
    dataset = open_source(SourceSpec(str(tmp_path), images=str(tmp_path / "p"), **columns))
    assert list(dataset.captions) == ["a, b", 'say "hi"', "c"]
    assert dataset.splits["val"].tolist() == [1]


def test_split_by_fraction_follows_the_seed(tmp_path: Path, pictures: Write) -> None:
    names = [f"{row}.png" for row in range(40)]
    pictures("", names)
    jsonl(tmp_path / "metadata.jsonl", [{"file_name": name, "text": name} for name in names])

    def splits(seed: int) -> dict[str, list[int]]:
        spec = SourceSpec(str(tmp_path), val_fraction=0.1, test_fraction=0.25, seed=seed)
        return {name: rows.tolist() for name, rows in open_source(spec).splits.items()}

    first = splits(0)
    assert {name: len(rows) for name, rows in first.items()} == {"train": 26, "val": 4, "test": 10}
    assert sorted(row for rows in first.values() for row in rows) == list(range(40))
    assert splits(0) == first and splits(1) != first


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metadata.jsonl", "", "has no rows"),
        ("metadata.jsonl", '{"file_name": "a.png", "text": "x"}\n{oops\n', "line 2: not JSON"),
        ("metadata.jsonl", "[1]\n", "line 1: must be an object"),
        (
            "metadata.jsonl",
            '{"file_name": "a.png", "words": "x"}\n',
            "line 1: none of the columns .*caption_column",
        ),
        ("metadata.jsonl", '{"path": "a.png", "text": "x"}\n', "line 1: none of the columns .*image_column"),
        ("metadata.jsonl", '{"file_name": "", "text": "x"}\n', "line 1: 'file_name' is empty"),
        ("metadata.jsonl", '{"file_name": "a.png", "text": 3}\n', "line 1: 'text' must be a text or a list"),
        (
            "metadata.jsonl",
            '{"file_name": "a.png", "text": "x", "split": "tset"}\n',
            "line 1: split is 'tset'",
        ),
        ("metadata.csv", "image,caption\na.png,x,y\n", "line 2: more columns than the header"),
        ("metadata.csv", "image,caption\na.png\n", "line 2: 'caption' must be a text"),
        ("metadata.csv", "image,caption\n../a.png,x\n", "line 2: the image's name '../a.png' leads out of"),
        (
            "metadata.csv",
            "image,caption\na.png,x\nz.png,y\n",
            r"1 of 2 images are missing:\n.*z\.png .*line 3",
        ),
        (
            "metadata.csv",
            "image,caption,split\na.png,x,train\na.png,y,test\n",
            "line 3: a.png is in split 'test' here and in 'train' at metadata.csv, line 2",
        ),
    ],
)
def test_broken_tables(tmp_path: Path, pictures: Write, name: str, text: str, message: str) -> None:
    pictures("", ["a.png"])
    (tmp_path / name).write_text(text)
    with pytest.raises(PairstillError, match=message):
        open_source(SourceSpec(str(tmp_path)))


def test_unknown_column_and_wrong_encoding(tmp_path: Path, pictures: Write) -> None:
    pictures("", ["a.png"])
    (tmp_path / "metadata.csv").write_text("image,caption\na.png,x\n")
    with pytest.raises(PairstillError, match=r"unknown caption_column 'captin'. Did you mean 'caption'"):
        open_source(SourceSpec(str(tmp_path), caption_column="captin"))
    (tmp_path / "metadata.csv").write_bytes(b"image,caption\na.png,\xff\xfe\n")
    with pytest.raises(PairstillError, match=r"cannot be read.*UTF-8"):
        open_source(SourceSpec(str(tmp_path)))
