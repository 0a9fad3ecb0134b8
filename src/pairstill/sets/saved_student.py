"""A student to keep: a model trained on a distilled set, or on all pairs, that can be saved, loaded and asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pairstill.data.decoding import decode, to_square
from pairstill.errors import PairstillError
from pairstill.experts.bank import parameters_of
from pairstill.runtime.files import read_manifest, read_tensors, sha256, write_manifest, write_tensors, write_text
from pairstill.sets.cards import model_card
from pairstill.towers.folding import fold
from pairstill.towers.image_encoder import ImageEncoder, load_image_encoder
from pairstill.towers.passes import Passes
from pairstill.towers.text_encoder import TextEncoder, load_text_encoder
from pairstill.towers.two_tower import Towers, TwoTower, build_model

FORMAT = 1
AT_ONCE = 64


@dataclass
class Student:
    """A two-tower model with its encoders: images and texts in, unit vectors out.

    Attributes:
        towers: Its settings.
        model: The trained part.
        image_encoder, text_encoder: What stands before it.
        made_from: The `info` of the set that it was trained on, with its number of `pairs`.
        score: Its recall, with the `split` that it was taken on.
        device: Where it computes.
    """

    towers: Towers
    model: TwoTower
    image_encoder: ImageEncoder
    text_encoder: TextEncoder
    made_from: Mapping[str, Any] = field(default_factory=dict)
    score: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"

    @cached_property
    def _front(self) -> nn.Module:
        if self.towers.train == "full":
            return nn.Identity()
        return fold(self.image_encoder, self.towers.image_size).to(self.device)

    @torch.no_grad()
    def encode_images(self, pictures: Sequence[str | Path | bytes]) -> Tensor:
        """Unit vectors [N, d] of at least one image file, given by its path or its bytes."""
        found = []
        for begin in range(0, len(pictures), AT_ONCE):
            squares = [self._square(picture) for picture in pictures[begin : begin + AT_ONCE]]
            found.append(self.encode_pixels(self.image_encoder.normalise(torch.stack(squares))))
        return torch.cat(found)

    @torch.no_grad()
    def encode_pixels(self, pixels: Tensor) -> Tensor:
        """Unit vectors [N, d] of normalised pixels [N, 3, S, S]."""
        ready = pixels.to(self.device).contiguous(memory_format=torch.channels_last)
        return self.model.encode_image(Passes()(self._front, ready)).cpu()

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """Unit vectors [N, d] of texts."""
        return self.model.encode_text(self.text_encoder.encode(list(texts)).to(self.device)).cpu()

    def _square(self, picture: str | Path | bytes) -> Tensor:
        if isinstance(picture, bytes):
            return torch.from_numpy(to_square(decode(picture, "the image"), self.towers.image_size))
        try:
            data = Path(picture).read_bytes()
        except OSError as error:
            raise PairstillError(f"{picture} can't be read: {error.strerror or error}.") from error
        return torch.from_numpy(to_square(decode(data, str(picture)), self.towers.image_size))

    def save(self, folder: Path) -> None:
        """Write the trained part, what it belongs to, and a card; `student.json` comes last."""
        write_tensors(folder / "student.safetensors", parameters_of(self.model))
        write_text(folder / "README.md", model_card(self.towers.to_dict(), self.made_from, self.score))
        record = {
            "format": FORMAT,
            "towers": self.towers.to_dict(),
            "encoders": {"image": self.image_encoder.fingerprint, "text": self.text_encoder.fingerprint},
            "made_from": dict(self.made_from),
            "score": dict(self.score),
            "sha256": sha256(folder / "student.safetensors"),
        }
        write_manifest(folder / "student.json", record)


def load_student(folder: str | Path, device: str = "cpu") -> Student:
    """Load a student with its encoders; what was changed since, or does not fit, is refused. Nothing is unpickled."""
    folder = Path(folder)
    if not (folder / "student.json").exists():
        raise PairstillError(f"{folder} is not a student: it has no student.json. Make one: pairstill train.")
    record = read_manifest(folder / "student.json")
    if record.get("format", FORMAT + 1) > FORMAT:
        raise PairstillError(
            f"{folder / 'student.json'} was written by a newer pairstill. Upgrade pairstill to read it."
        )
    if sha256(folder / "student.safetensors") != record.get("sha256"):
        raise PairstillError(f"{folder / 'student.safetensors'} was changed after the student was saved.")
    towers = Towers.from_dict(record["towers"])
    image_encoder = load_image_encoder(towers.image, towers.image_output)
    text_encoder = load_text_encoder(towers.text, towers.text_pooling).to(device)
    for kind, encoder in (("image", image_encoder), ("text", text_encoder)):
        if encoder.fingerprint != record["encoders"][kind]:
            raise PairstillError(
                f"the {kind} encoder '{record['towers'][kind]}' has other weights here than those it was trained with."
            )
    model = build_model(towers, image_encoder, text_encoder.width, seed=0).eval()
    tensors, own = read_tensors(folder / "student.safetensors"), dict(model.named_parameters())
    if {n: t.shape for n, t in tensors.items()} != {n: p.shape for n, p in own.items()}:
        raise PairstillError(f"{folder / 'student.safetensors'} does not hold the parameters of {towers.describe()}.")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])
    return Student(towers, model.to(device), image_encoder, text_encoder, record["made_from"], record["score"], device)
