"""Images that are files below one folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pairstill.data.pair_dataset import is_unicode
from pairstill.errors import PairstillError

# Where the images of the usual downloads lie, seen from their annotations.
USUAL_FOLDERS = (
    "",
    "Images",
    "images",
    "flickr30k-images",
    "flickr30k_images",
    "Flicker8k_Dataset",
    "Flickr8k_Dataset",
    "flickr8k_images",
)
SHOWN = 10


@dataclass(frozen=True)
class FileImages:
    """An image store over files; `where` says for each the annotation that names it."""

    root: Path
    names: Sequence[str]
    where: Sequence[str]

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        """The file's name below the root."""
        return self.names[index]

    def read(self, index: int) -> bytes:
        """The file's bytes."""
        try:
            return (self.root / self.names[index]).read_bytes()
        except OSError as error:
            raise PairstillError(
                f"{self.root / self.names[index]}: {error.strerror or error} ({self.where[index]}). "
                "Restore the file or drop its row."
            ) from error

    def signature(self) -> str:
        """Digest of the names, sizes and times of all files."""
        digest = hashlib.sha256(str(self.root).encode())
        for name in self.names:
            try:
                status = (self.root / name).stat()
                times = f"{status.st_mtime_ns}\0{status.st_ctime_ns}"  # a copy may keep the first, not the second
                digest.update(f"{name}\0{status.st_size}\0{times}\n".encode())
            except OSError:
                digest.update(f"{name}\0missing\n".encode())
        return digest.hexdigest()[:16]


def file_images(root: Path, names: Sequence[str], where: Sequence[str], must_exist: bool) -> FileImages:
    """A store over `root`, after refusing every name that leads out of it.

    Args:
        root: Folder of the images.
        names: File names below it.
        where: For each name the annotation row, for errors.
        must_exist: Whether a missing file is an error now rather than when it is read.
    """
    _refuse_broken_names(names, where)
    _refuse_escapes(root, names, where)
    if must_exist:
        missing = [row for row, name in enumerate(names) if not (root / name).is_file()]
        if missing:
            listed = "".join(f"\n  {root / names[row]} ({where[row]})" for row in missing[:SHOWN])
            more = f"\n  and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
            raise PairstillError(
                f"{len(missing)} of {len(names)} images are missing:{listed}{more}\n"
                "Restore them, say where they are with images, or drop them with on_bad=skip."
            )
    return FileImages(root, names, where)


def _refuse_broken_names(names: Sequence[str], where: Sequence[str]) -> None:
    for name, place in zip(names, where, strict=True):
        if not is_unicode(name) or "\0" in name:
            raise PairstillError(f"{place}: the image's name {name!r} is no valid text. Rename the file.")


def _refuse_escapes(root: Path, names: Sequence[str], where: Sequence[str]) -> None:
    """Neither `..`, nor an absolute name, nor a symbolic link may lead out of the root."""
    real_root = os.path.realpath(root)
    inside: dict[str, bool] = {}
    for name, place in zip(names, where, strict=True):
        parts = name.replace("\\", "/").split("/")
        absolute = Path(name).is_absolute() or ":" in parts[0] or parts[0] == ""
        folder = str((root / name).parent)
        if not absolute and ".." not in parts:
            if folder not in inside:
                inside[folder] = _is_inside(folder, real_root)
            linked = (root / name).is_symlink()
            if inside[folder] and (not linked or _is_inside(str(root / name), real_root)):
                continue
        raise PairstillError(
            f"{place}: the image's name {name!r} leads out of {root}. "
            "Names must stay below that folder; correct the row or set images to the right folder."
        )


def _is_inside(path: str, real_root: str) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(real_root)


def find_folder(base: Path, images: str | None, names: Iterable[str], annotations: Path) -> Path:
    """The folder that holds these images: `images` when given, else one of the usual ones below `base`.

    The folder with the most of the given names wins; the first of equals.
    """
    if images is not None:
        folder = Path(images).expanduser()
        if not folder.is_dir():
            raise PairstillError(f"images: {folder} is not a folder.")
        return folder
    sample = [name for name in names if ".." not in name and not Path(name).is_absolute()]
    folders = [base / usual for usual in USUAL_FOLDERS if (base / usual).is_dir()]
    hits = [sum((folder / name).is_file() for name in sample) for folder in folders]
    if sample and max(hits, default=0) == 0:
        tried = ", ".join(str(base / usual) for usual in USUAL_FOLDERS)
        raise PairstillError(
            f"the images of {annotations} were not found, for example {sample[0]}. Looked in: {tried}. "
            "Say where they are with images."
        )
    return folders[hits.index(max(hits))]
