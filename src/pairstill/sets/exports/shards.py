"""WebDataset shards: tar files in which each pair is a .png, a .txt with its caption, and a .json with the rest."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pairstill.errors import PairstillError
from pairstill.runtime.files import atomic, write_text
from pairstill.sets.exports.card import as_row, export_card, numbers
from pairstill.sets.exports.parts import Parts

PAIRS_IN_A_SHARD = 1000
USAGE = """import webdataset

pairs = webdataset.WebDataset("PATH/TO/THIS/FOLDER/pairs-000000.tar").decode("pil").to_tuple("png", "txt", "json")
image, caption, rest = next(iter(pairs))"""


def write(parts: Parts, folder: Path) -> None:
    """Write the shards and the card."""
    for shard, first in enumerate(range(0, len(parts.pictures), PAIRS_IN_A_SHARD)):
        with atomic(folder / f"pairs-{shard:06d}.tar") as temporary, tarfile.open(temporary, "w") as tar:
            for row in range(first, min(first + PAIRS_IN_A_SHARD, len(parts.pictures))):
                file = io.BytesIO()
                Image.fromarray(parts.pictures[row]).save(file, "png")
                rest = as_row(parts, row)
                _add(tar, f"{row:05d}.png", file.getvalue())
                _add(tar, f"{row:05d}.txt", rest["caption"].encode())
                _add(tar, f"{row:05d}.json", json.dumps(rest, ensure_ascii=False).encode())
    write_text(folder / "README.md", export_card(parts, USAGE))


def read(folder: Path) -> Parts:
    """The reverse."""
    pictures: list[Any] = []
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.glob("pairs-*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                content = tar.extractfile(member)
                if content is None:
                    raise PairstillError(f"{path} holds {member.name}, which is not a file.")
                if member.name.endswith(".png"):
                    pictures.append(np.asarray(Image.open(io.BytesIO(content.read())).convert("RGB")))
                elif member.name.endswith(".json"):
                    rows.append(json.loads(content.read()))
    if not rows or len(rows) != len(pictures):
        raise PairstillError(f"{folder} holds {len(pictures)} images and {len(rows)} descriptions of pairs.")
    texts, similarity = numbers(rows)
    return Parts(np.stack(pictures), texts, [row["nearest_captions"] for row in rows], similarity)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
