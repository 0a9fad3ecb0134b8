"""A Hugging Face dataset: one parquet file with images, embeddings and captions, and a card that says where it is."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pictures

from pairstill.runtime.files import atomic, write_text
from pairstill.sets.exports.card import as_row, export_card, numbers
from pairstill.sets.exports.parts import Parts

FILE = "data/train-00000-of-00001.parquet"
USAGE = """from datasets import load_dataset

pairs = load_dataset("PATH/TO/THIS/FOLDER", split="train")
print(pairs[0]["image"], pairs[0]["caption"])
embeddings = pairs.with_format("torch")["text_embedding"]"""


def write(parts: Parts, folder: Path) -> None:
    """Write the parquet file and the card."""
    from datasets import Dataset, Features, Image, Sequence, Value

    columns: dict[str, Any] = {
        "image": Image(),
        "caption": Value("string"),
        "nearest_captions": Sequence(Value("string")),
        "text_embedding": Sequence(Value("float32"), length=parts.texts.shape[1]),
    }
    if parts.similarity is not None:
        columns["similarity"] = Sequence(Value("float32"), length=len(parts.similarity))
    rows = [
        {"image": {"bytes": _png(picture), "path": f"{row:05d}.png"}, **as_row(parts, row)}
        for row, picture in enumerate(parts.pictures)
    ]
    dataset = Dataset.from_list(rows, features=Features(columns))
    with atomic(folder / FILE) as temporary:
        dataset.to_parquet(temporary)
    where = [{"config_name": "default", "data_files": [{"split": "train", "path": "data/train-*"}]}]
    write_text(folder / "README.md", export_card(parts, USAGE, {"configs": where}))


def read(folder: Path) -> Parts:
    """The reverse, without a copy in any cache."""
    import pyarrow.parquet as pq

    rows = pq.read_table(folder / FILE).to_pylist()
    pictures = np.stack([np.asarray(Pictures.open(io.BytesIO(row["image"]["bytes"])).convert("RGB")) for row in rows])
    texts, similarity = numbers(rows)
    return Parts(pictures, texts, [row["nearest_captions"] for row in rows], similarity)


def _png(picture: Any) -> bytes:
    file = io.BytesIO()
    Pictures.fromarray(picture).save(file, "png")
    return file.getvalue()
