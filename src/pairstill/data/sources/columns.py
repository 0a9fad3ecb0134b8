"""Which columns of a table hold the image, its captions and its split."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pairstill.data.sources.source_spec import SourceSpec
from pairstill.errors import PairstillError, unknown

IMAGE_NAMES = ("image", "img", "picture", "photo", "jpg", "jpeg", "png", "webp")
CAPTION_NAMES = (
    "captions",
    "caption",
    "text",
    "texts",
    "txt",
    "sentences",
    "raw",
    "prompt",
    "description",
    "alt_text",
)
NUMBERED = re.compile(r"(caption|text|sentence)s?_?\d+")
Result = Mapping[str, Any]


@dataclass(frozen=True)
class Columns:
    """Names of columns; `json.caption` is a field of a column that holds structures.

    `captions` may be several (`caption_0` to `caption_4`).
    """

    image: str
    captions: tuple[str, ...]
    split: str | None

    def captions_of(self, row: Result) -> list[str]:
        """All captions of a row; a missing one is empty, so that the check can name it."""
        texts: list[str] = []
        for column in self.captions:
            value = cell(row, column)
            found = value if isinstance(value, list) else [value]
            texts.extend("" if text is None else str(text).strip() for text in found)
        return texts

    def needed(self) -> list[str]:
        """The columns that hold captions and split."""
        names = [column.split(".")[0] for column in (*self.captions, self.split or "") if column]
        return list(dict.fromkeys(names))


def cell(row: Result, column: str) -> Any:
    """A value of a row; `outer.inner` reaches into a structure."""
    if column in row:
        return row[column]
    outer, _, inner = column.partition(".")
    value = row.get(outer)
    return value.get(inner) if isinstance(value, Mapping) else None


def find_columns(features: Mapping[str, Any], spec: SourceSpec, place: str) -> Columns:
    """By the settings of `spec`, else by type and usual name.

    Args:
        features: Columns and their types, as Hugging Face `datasets` gives them.
        spec: May name some columns.
        place: The source, for errors.
    """
    flat = {**features}
    for name, feature in features.items():
        if isinstance(feature, Mapping) and "bytes" not in feature:
            flat.update({f"{name}.{inner}": kind for inner, kind in feature.items()})
    split = spec.split_column or ("split" if "split" in flat and is_text(flat["split"]) else None)
    if split is not None and split not in flat:
        raise unknown(f"split_column of {place}", split, flat)
    return Columns(_image(features, spec, place), _captions(flat, spec, place), split)


def _image(features: Mapping[str, Any], spec: SourceSpec, place: str) -> str:
    if spec.image_column is not None:
        if spec.image_column not in features:
            raise unknown(f"image_column of {place}", spec.image_column, features)
        return spec.image_column
    pictures = [name for name, feature in features.items() if type(feature).__name__ == "Image"]
    pictures = pictures or [name for name, feature in features.items() if is_binary(feature)]
    named = [name for name in IMAGE_NAMES if name in pictures]
    if named or len(pictures) == 1:
        return (named or pictures)[0]
    found = f"several: {', '.join(pictures)}" if pictures else f"none among: {', '.join(features)}"
    raise PairstillError(f"{place}: which column holds the image? Found {found}. Set image_column.")


def _captions(flat: Mapping[str, Any], spec: SourceSpec, place: str) -> tuple[str, ...]:
    if spec.caption_column is not None:
        if spec.caption_column not in flat:
            raise unknown(f"caption_column of {place}", spec.caption_column, flat)
        return (spec.caption_column,)
    texts = [name for name, feature in flat.items() if is_text(feature)]
    for name in CAPTION_NAMES:
        found = next((text for text in texts if text.split(".")[-1].lower() == name), None)
        if found is not None:
            return (found,)
    numbered = tuple(name for name in texts if NUMBERED.fullmatch(name.lower()))
    if numbered:
        return numbered
    raise PairstillError(
        f"{place}: which column holds the captions? Columns with text: {', '.join(texts) or 'none'}. "
        "Set caption_column."
    )


def is_text(feature: Any) -> bool:
    """A text, or a list of texts."""
    if isinstance(feature, list):
        return len(feature) == 1 and is_text(feature[0])
    inner = getattr(feature, "feature", None)
    return is_text(inner) if inner is not None else str(getattr(feature, "dtype", "")).endswith("string")


def is_binary(feature: Any) -> bool:
    """Encoded bytes, or a structure of bytes and path."""
    if isinstance(feature, Mapping):
        return "bytes" in feature
    return str(getattr(feature, "dtype", "")).endswith("binary")
