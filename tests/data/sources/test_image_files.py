from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from pairstill.data.sources.image_files import file_images, find_folder
from pairstill.errors import PairstillError
from tests.data.conftest import noise, store


def test_file_store_pickles(tmp_path: Path) -> None:
    images = store(tmp_path, 2)
    assert pickle.loads(pickle.dumps(images)).read(1) == images.read(1)


def test_a_signature_changes_with_the_files_and_not_with_reading_them(tmp_path: Path) -> None:
    images = store(tmp_path, 3)
    first = images.signature()
    images.read(0)
    assert images.signature() == first
    noise(9, 9).save(tmp_path / "1.png")
    second = images.signature()
    (tmp_path / "1.png").unlink()
    assert len({first, second, images.signature()}) == 3


def test_missing_files_are_counted_and_ten_of_them_named(tmp_path: Path) -> None:
    (tmp_path / "here.png").touch()
    names = ["here.png", *(f"{row}.png" for row in range(12))]
    where = [f"line {row}" for row in range(13)]
    with pytest.raises(PairstillError, match="12 of 13 images are missing") as caught:
        file_images(tmp_path, names, where, must_exist=True)
    assert "9.png (line 10)" in str(caught.value) and "10.png" not in str(caught.value)
    assert "and 2 more" in str(caught.value)
    with pytest.raises(PairstillError, match=r"3\.png: No such file.*line 4"):
        file_images(tmp_path, names, where, must_exist=False).read(4)


@pytest.mark.parametrize("name", ["../a.png", "/a.png", "deep/../../a.png", "..\\a.png", "C:\\a.png", "out/a.png"])
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "out").symlink_to(tmp_path)
    with pytest.raises(PairstillError, match=r"line 1: the image's name .* leads out of"):
        file_images(tmp_path / "set", ["fine.png", name], ["line 0", "line 1"], must_exist=False)


def test_of_the_usual_folders_the_one_with_most_of_the_pictures_is_taken(tmp_path: Path) -> None:
    for name in ("a.png", "Images/a.png", "Images/b.png", "images/b.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    note = tmp_path / "x.json"
    assert find_folder(tmp_path, None, ["a.png", "b.png"], note) == tmp_path / "Images"
    assert find_folder(tmp_path, str(tmp_path), ["b.png"], note) == tmp_path
    with pytest.raises(PairstillError, match=r"were not found, for example c\.png"):
        find_folder(tmp_path, None, ["c.png"], note)
