from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image

from pairstill.data.checking import check
from pairstill.data.pair_dataset import PairDataset
from pairstill.data.sources import SourceSpec, open_source
from pairstill.errors import PairstillError
from tests.data.conftest import Memory, dataset, picture


def swapped(row: int, value: bytes) -> list[bytes]:
    return [value if number == row else picture(number, 6 + number) for number in range(6)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sound_dataset_is_described(workers: int) -> None:
    many = dataset(links=np.array([[row, row] for row in range(6)] + [[0, 1], [0, 2]]))
    done: list[tuple[int, int]] = []
    checked, findings = check(many, workers, "error", lambda at, total: done.append((at, total)))
    assert findings.images == {"train": 4, "val": 1, "test": 1} and findings.links["train"] == 6
    assert findings.captions == {"train": 4, "val": 1, "test": 1}
    assert (findings.captions_per_image.least, findings.captions_per_image.most) == (1, 3)
    assert findings.captions_per_image.mean == pytest.approx(8 / 6, abs=1e-3)
    assert findings.images_per_caption.most == 2
    assert (findings.smallest, findings.largest) == ((6, 5), (11, 5))
    assert findings.duplicate_images == findings.duplicate_captions == findings.dropped_images == 0
    assert done[-1] == (6, 6) and len(checked.images) == 6
    assert json.loads(json.dumps(findings.to_dict()))["images"]["train"] == 4
    assert "train            4         4         6" in findings.lines()


def test_fingerprint_needs_no_second_reading() -> None:
    sound = dataset()
    expected = sound.fingerprint
    checked, _ = check(sound)
    checked.images.data.clear()
    checked.images.data.extend([b""] * 6)
    assert checked.fingerprint == expected


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (dataset(swapped(2, b"junk")), r"p2\.png: not an image"),
        (dataset(swapped(2, b"")), r"p2\.png: the image is empty"),
        (dataset(swapped(2, picture(2)[:-30])), r"p2\.png: the image cannot be decoded .*truncated"),
        (dataset(captions=["a", "b", " \n", "d", "e", "f"]), r"caption 2 of p2\.png is empty"),
        (dataset(captions=[*"abcdefg"]), r"caption 6 \('g'\) has no image"),
        (
            dataset(links=np.array([[row, row] for row in range(5)] + [[4, 5]])),
            r"p5\.png: the image has no caption",
        ),
        (
            dataset(splits={"train": np.arange(5), "val": np.array([4]), "test": np.array([5])}),
            r"p4\.png: the image is in two splits, val and train",
        ),
        (
            dataset(swapped(1, picture(5, 11))),
            r"p1\.png: leak: in train, and the same bytes in test as p5\.png",
        ),
    ],
)
def test_faults_are_refused_by_name(bad: PairDataset, message: str) -> None:
    with pytest.raises(PairstillError, match=message) as caught:
        check(bad)
    assert "on_bad=skip" in str(caught.value)


def test_bomb_is_refused() -> None:
    buffer = io.BytesIO()
    Image.new("1", (9000, 9000)).save(buffer, "PNG")
    with pytest.raises(PairstillError, match=r"p0\.png: refused as a decompression bomb"):
        check(dataset(swapped(0, buffer.getvalue())))


def test_all_problems_are_counted_and_ten_shown() -> None:
    many = PairDataset(
        "toy",
        Memory([b"junk%d" % row for row in range(13)]),
        ["c"],
        np.array([[row, 0] for row in range(13)]),
        {"train": np.arange(11), "val": np.array([11]), "test": np.array([12])},
    )
    with pytest.raises(PairstillError, match="toy has 13 problems") as caught:
        check(many)
    assert str(caught.value).count("not an image") == 10 and "and 3 more" in str(caught.value)


def test_skip_drops_and_counts() -> None:
    data = swapped(0, b"junk")
    data[1] = picture(5, 11)
    bad = dataset(data, captions=["a", "b", "", "d", "e", "f", "orphan"])
    checked, findings = check(bad, on_bad="skip")
    # Image 0 is broken, 1 leaks from test, 2 has only an empty caption.
    assert [checked.images.name(row) for row in range(3)] == ["p3.png", "p4.png", "p5.png"]
    assert list(checked.captions) == ["d", "e", "f"] and checked.links.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert {name: rows.tolist() for name, rows in checked.splits.items()} == {
        "train": [0],
        "val": [1],
        "test": [2],
    }
    assert findings.dropped_images == 3 and findings.dropped_captions == 4
    assert findings.unreadable[0]["name"] == "p0.png" and findings.leaks[0]["same_as"] == "p5.png"
    assert findings.empty_captions == findings.images_without_caption == findings.captions_without_image == 1
    assert "unreadable images: 1" in findings.lines()
    again, clean = check(checked)
    assert clean.dropped_images == 0 and again.fingerprint == checked.fingerprint


def test_skip_keeps_a_shared_picture_out_of_train() -> None:
    shared = dataset(splits={"train": np.arange(6), "val": np.array([4]), "test": np.array([5])})
    checked, findings = check(shared, on_bad="skip")
    assert checked.splits["train"].tolist() == [0, 1, 2, 3] and checked.splits["val"].tolist() == [4]
    assert findings.in_two_splits == 2 and len(checked.images) == 6


def test_same_bytes_within_a_split_are_only_counted() -> None:
    _, findings = check(dataset(swapped(1, picture(0, 6)), captions=["a", "a", "c", "d", "e", "f"]))
    assert findings.duplicate_images == 1 and findings.duplicate_captions == 1 and not findings.leaks


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_empty_split_is_refused_even_when_skipping(split: str) -> None:
    splits = {"train": np.arange(4), "val": np.array([4]), "test": np.array([5])}
    splits[split] = np.array([], dtype=np.int64)
    with pytest.raises(PairstillError, match=f"the split '{split}' has no images"):
        check(dataset(splits=splits), on_bad="skip")


def test_numbers_out_of_range() -> None:
    with pytest.raises(PairstillError, match="a link points at"):
        check(dataset(links=np.array([[6, 0]])))
    with pytest.raises(PairstillError, match="split 'val' points at"):
        check(dataset(splits={"train": np.arange(4), "val": np.array([9]), "test": np.array([5])}))


def test_the_embedded_set_is_sound() -> None:
    checked, findings = check(open_source(SourceSpec("emoji")))
    assert findings.dropped_images == 0 and not findings.leaks and len(checked.images) == len(checked.digests)
