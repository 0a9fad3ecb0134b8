"""A folder of PNG files with `metadata.jsonl`, as `datasets`' image folder and `pairstill prepare` read it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from pairstill.errors import PairstillError
from pairstill.runtime.files import atomic, read_tensors, write_tensors, write_text
from pairstill.sets.exports.card import export_card
from pairstill.sets.exports.parts import Parts

USAGE = """from datasets import load_dataset

pairs = load_dataset("imagefolder", data_dir="PATH/TO/THIS/FOLDER", split="train")
print(pairs[0]["image"], pairs[0]["text"])"""


def write(parts: Parts, folder: Path) -> None:
    """Write images, captions, and the tensors that PNG and JSON can't hold."""
    lines = []
    for row, picture in enumerate(parts.pictures):
        name = f"{row:05d}.png"
        with atomic(folder / name) as temporary:
            Image.fromarray(picture).save(temporary, "png")
        near = list(parts.captions[row])
        lines.append(json.dumps({"file_name": name, "text": near[0], "nearest_captions": near}, ensure_ascii=False))
    write_text(folder / "metadata.jsonl", "".join(f"{line}\n" for line in lines))
    tensors = {"texts": parts.texts} | ({} if parts.similarity is None else {"similarity": parts.similarity})
    write_tensors(folder / "embeddings.safetensors", tensors)
    write_text(folder / "README.md", export_card(parts, USAGE))


def read(folder: Path) -> Parts:
    """The reverse."""
    rows = [json.loads(line) for line in (folder / "metadata.jsonl").read_text(encoding="utf-8").split("\n") if line]
    for row in rows:
        if Path(row["file_name"]).name != row["file_name"]:
            raise PairstillError(f"{folder / 'metadata.jsonl'} names a file outside its folder: {row['file_name']!r}.")
    pictures = np.stack([np.asarray(Image.open(folder / row["file_name"]).convert("RGB")) for row in rows])
    tensors = read_tensors(folder / "embeddings.safetensors")
    captions = [row["nearest_captions"] for row in rows]
    return Parts(pictures, tensors["texts"], captions, tensors.get("similarity"))
