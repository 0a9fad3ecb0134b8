"""The two-tower model: what is trained, and how inputs become unit embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.functional import normalize

from pairstill.errors import PairstillError, unknown
from pairstill.runtime.seeds import global_seed
from pairstill.towers.folding import noise_for
from pairstill.towers.heads import build_head
from pairstill.towers.image_encoder import ImageEncoder
from pairstill.towers.trained_folding import trained_copy
from pairstill.towers.weights import split_name


@dataclass(frozen=True)
class Towers:
    """The settings of a two-tower model.

    Attributes:
        image: Image encoder.
        text: Text encoder; always frozen.
        train: "heads": both projectors, on frozen features. "full": image backbone and text projector.
        image_size: Side of the square images, in pixels.
        embed_dim: Width of the embedding in "heads"; in "full" it is the backbone's own width.
        projector: Kind of the projectors.
        dropout: In the "mlp" projector.
        image_output: The backbone's pooled features, or its classifier's logits.
        text_pooling: How token vectors become a sentence vector.
    """

    image: str = "efficientnet_lite0"
    text: str = "minilm"
    train: Literal["heads", "full"] = "heads"
    image_size: int = 224
    embed_dim: int = 512
    projector: Literal["mlp", "linear"] = "mlp"
    dropout: float = 0.1
    image_output: Literal["pooled", "logits"] = "pooled"
    text_pooling: Literal["auto", "cls", "mean"] = "auto"

    def __post_init__(self) -> None:
        choices = {
            "train": ("heads", "full"),
            "projector": ("mlp", "linear"),
            "image_output": ("pooled", "logits"),
            "text_pooling": ("auto", "cls", "mean"),
        }
        for option, known in choices.items():
            if getattr(self, option) not in known:
                raise unknown(f"towers.{option}", str(getattr(self, option)), known)
        for option, least in (("image_size", 8), ("embed_dim", 1)):
            value = getattr(self, option)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise PairstillError(f"towers.{option} must be a whole number of at least {least}, not {value!r}.")
        if not isinstance(self.dropout, (int, float)) or not 0 <= self.dropout < 1:
            raise PairstillError(f"towers.dropout must be at least 0 and below 1, not {self.dropout!r}.")
        split_name(self.image)
        split_name(self.text)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Towers:
        """The inverse of `to_dict`; missing settings keep their defaults, unknown ones are an error."""
        names = [field.name for field in fields(cls)]
        for name in values:
            if name not in names:
                raise unknown("towers option", name, names)
        return cls(**values)

    def describe(self) -> str:
        """For example "efficientnet_lite0@112 + minilm, heads"."""
        return f"{self.image}@{self.image_size} + {self.text}, {self.train}"


class TwoTower(nn.Module):
    """Image and text embeddings on one unit sphere. Every parameter is a trained one.

    Attributes:
        body: The image backbone in "full", `nn.Identity` in "heads".
        image_head: `nn.Identity` in "full", a head in "heads".
        text_head: The text projector.
    """

    def __init__(self, body: nn.Module, image_head: nn.Module, text_head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.image_head = image_head
        self.text_head = text_head

    def image_parameters(self) -> dict[str, nn.Parameter]:
        """The image tower's parameters, by name."""
        return {name: value for name, value in self.named_parameters() if not name.startswith("text_head.")}

    def text_parameters(self) -> dict[str, nn.Parameter]:
        """The text projector's parameters, by name."""
        return {name: value for name, value in self.named_parameters() if name.startswith("text_head.")}

    def encode_image(self, inputs: Tensor) -> Tensor:
        """Normalised pixels [N, 3, H, W] ("full") or features [N, width] ("heads") → unit vectors [N, d]."""
        return normalize(self.image_head(self.body(inputs)), dim=-1)

    def encode_text(self, texts: Tensor) -> Tensor:
        """Sentence vectors [N, text_width] → unit vectors [N, d]."""
        return normalize(self.text_head(texts), dim=-1)

    def forward(self, inputs: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
        """Both embeddings, [N, d] each."""
        return self.encode_image(inputs), self.encode_text(texts)


def build_model(towers: Towers, image_encoder: ImageEncoder, text_width: int, seed: int) -> TwoTower:
    """A fresh model: pretrained backbone (a copy, in "full"), heads drawn from `seed` and from nothing else.

    It is returned in training mode; batch-norm statistics of the backbone stay frozen in any mode.
    """
    model = build_heads(towers, image_encoder.width, text_width, seed)
    if towers.train == "full":
        model.body = trained_copy(image_encoder, noise_for(image_encoder, towers.image_size))
    return model.train()


def build_heads(towers: Towers, image_width: int, text_width: int, seed: int) -> TwoTower:
    """The same model without its backbone, in any towers: it reads the backbone's features."""
    full = towers.train == "full"
    width = image_width if full else towers.embed_dim
    with global_seed(seed, "image_head"):
        image_head = build_head("none" if full else towers.projector, image_width, width, towers.dropout)
    with global_seed(seed, "text_head"):
        text_head = build_head(towers.projector, text_width, width, towers.dropout)
    return TwoTower(nn.Identity(), image_head, text_head).train()
