from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pairstill.data.sources import SourceSpec, open_source
from pairstill.errors import PairstillError

NAMES = ["a.png", "b.png", "c.png"]
Write = Callable[..., None]


def annotate(folder: Path, entries: list[dict[str, Any]], name: str = "dataset_flickr8k.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps({"dataset": "flickr8k", "images": entries}))
    return folder / name


def entry(name: str, split: str, **more: Any) -> dict[str, Any]:
    return {
        "filename": name,
        "split": split,
        "sentences": [{"raw": f"{name} one"}, {"raw": "same text"}],
        **more,
    }


def three() -> list[dict[str, Any]]:
    return [entry("a.png", "train"), entry("b.png", "val"), entry("c.png", "test")]


@pytest.mark.parametrize("folder", ["", "Images", "images", "flickr30k-images", "Flicker8k_Dataset", "flickr8k_images"])
def test_finds_pictures_in_the_usual_folders(tmp_path: Path, pictures: Write, folder: str) -> None:
    pictures(folder, NAMES)
    annotate(tmp_path, three())
    dataset = open_source(SourceSpec(str(tmp_path)))
    assert dataset.name == "flickr8k" and "research" in dataset.license
    assert {name: rows.tolist() for name, rows in dataset.splits.items()} == {
        "train": [0],
        "val": [1],
        "test": [2],
    }
    # Every sentence is a caption of its own, also when two images share the words: the published protocol.
    assert dataset.links.tolist() == [[0, 0], [0, 1], [1, 2], [1, 3], [2, 4], [2, 5]]
    assert dataset.images.read(1) == (tmp_path / folder / "b.png").read_bytes()


def test_images_option(tmp_path: Path, pictures: Write) -> None:
    pictures("elsewhere/deep", NAMES)
    path = annotate(tmp_path / "notes", three())
    dataset = open_source(SourceSpec(str(path), images=str(tmp_path / "elsewhere/deep")))
    assert dataset.images.name(2) == "c.png" and dataset.images.read(2)
    with pytest.raises(PairstillError, match=r"were not found, for example a\.png\. Looked in.*Images"):
        open_source(SourceSpec(str(path)))
    with pytest.raises(PairstillError, match=r"images: .*nope is not a folder"):
        open_source(SourceSpec(str(path), images=str(tmp_path / "nope")))


@pytest.mark.parametrize("flat", [False, True])
def test_coco_layout_with_restval(tmp_path: Path, pictures: Write, flat: bool) -> None:
    entries = [
        entry("a.png", "train", filepath="train2014"),
        entry("b.png", "restval", filepath="val2014"),
        entry("c.png", "val", filepath="val2014"),
        entry("d.png", "test", filepath="val2014"),
    ]
    names = [name["filename"] if flat else f"{name['filepath']}/{name['filename']}" for name in entries]
    pictures("images", names)
    dataset = open_source(SourceSpec(str(annotate(tmp_path, entries, "dataset_coco.json"))))
    assert dataset.splits["train"].tolist() == [0, 1]
    assert [dataset.images.name(row) for row in range(4)] == names


def test_limit_is_of_each_split(tmp_path: Path, pictures: Write) -> None:
    names = [f"{row}.png" for row in range(12)]
    pictures("", names)
    annotate(tmp_path, [entry(name, ("train", "val", "test")[row % 3]) for row, name in enumerate(names)])
    dataset = open_source(SourceSpec(str(tmp_path), limit=2))
    assert {name: len(rows) for name, rows in dataset.splits.items()} == {"train": 2, "val": 2, "test": 2}
    assert len(dataset.images) == 6 and len(dataset.captions) == 12
    assert dataset.images.name(int(dataset.splits["val"][1])) == "4.png"


def test_missing_pictures_are_named_with_their_row(tmp_path: Path, pictures: Write) -> None:
    pictures("", NAMES)
    (tmp_path / "b.png").unlink()
    annotate(tmp_path, three())
    with pytest.raises(PairstillError, match=r"1 of 3 images are missing:\n.*b\.png \(dataset_flickr8k.json, image 1"):
        open_source(SourceSpec(str(tmp_path)))
    dataset = open_source(SourceSpec(str(tmp_path), on_bad="skip"))
    with pytest.raises(PairstillError, match=r"b\.png: No such file.*image 1"):
        dataset.images.read(1)


@pytest.mark.parametrize("name", ["../secret.png", "/etc/passwd", "x/../../secret.png", "..\\secret.png", "C:\\a.png"])
@pytest.mark.parametrize("on_bad", ["error", "skip"])
def test_names_cannot_leave_the_folder(tmp_path: Path, pictures: Write, name: str, on_bad: Any) -> None:
    pictures("set", NAMES)
    (tmp_path / "secret.png").write_bytes(b"secret")
    annotate(tmp_path / "set", [*three(), entry(name, "train")])
    with pytest.raises(PairstillError, match=r"image 3: the image's name .* leads out of"):
        open_source(SourceSpec(str(tmp_path / "set"), on_bad=on_bad))


@pytest.mark.parametrize("through_folder", [False, True])
def test_symbolic_links_cannot_leave_the_folder(tmp_path: Path, pictures: Write, through_folder: bool) -> None:
    pictures("set", NAMES)
    pictures("outside", ["s.png"])
    if through_folder:
        (tmp_path / "set" / "sub").symlink_to(tmp_path / "outside")
    else:
        (tmp_path / "set" / "link.png").symlink_to(tmp_path / "outside" / "s.png")
    bad = entry("sub/s.png" if through_folder else "link.png", "train")
    annotate(tmp_path / "set", [*three(), bad])
    with pytest.raises(PairstillError, match=r"image 3: .*leads out of"):
        open_source(SourceSpec(str(tmp_path / "set")))


def test_links_within_the_folder_are_fine(tmp_path: Path, pictures: Write) -> None:
    pictures("real", NAMES)
    (tmp_path / "Images").symlink_to(tmp_path / "real")
    annotate(tmp_path, three())
    assert open_source(SourceSpec(str(tmp_path))).images.read(0)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "no list 'images'"),
        ([{"split": "train"}], "image 0: no 'filename'"),
        ([{"filename": "a.png", "split": "train"}], "image 0: no list 'sentences'"),
        (
            [{"filename": "a.png", "split": "train", "sentences": [{"tokens": []}]}],
            "sentence 0: no text 'raw'",
        ),
        ([entry("a.png", "trian")], "image 0: split is 'trian'. Write one of: train"),
    ],
)
def test_broken_annotations(tmp_path: Path, pictures: Write, entries: Any, message: str) -> None:
    pictures("", NAMES)
    with pytest.raises(PairstillError, match=message):
        open_source(SourceSpec(str(annotate(tmp_path, entries))))


def test_broken_json_and_several_files(tmp_path: Path) -> None:
    (tmp_path / "dataset_a.json").write_text("{")
    with pytest.raises(PairstillError, match="not readable JSON"):
        open_source(SourceSpec(str(tmp_path)))
    (tmp_path / "dataset_b.json").write_text("{}")
    with pytest.raises(PairstillError, match=r"holds: dataset_a.json, dataset_b.json\. Give the file itself"):
        open_source(SourceSpec(str(tmp_path)))
