"""Projection heads: from an encoder's width to the shared embedding."""

from __future__ import annotations

from typing import Literal, cast

from torch import Tensor, nn

from pairstill.errors import PairstillError, unknown

HeadKind = Literal["mlp", "linear", "none"]


class ProjectionHead(nn.Module):
    """The paper's projector: p = W₁x; LayerNorm(p + dropout(W₂ gelu(p)))."""

    def __init__(self, in_width: int, out_width: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.projection = nn.Linear(in_width, out_width)
        self.hidden = nn.Linear(out_width, out_width)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(out_width)

    def forward(self, inputs: Tensor) -> Tensor:
        """[N, in_width] → [N, out_width]."""
        projected = self.projection(inputs)
        hidden = self.dropout(self.hidden(nn.functional.gelu(projected)))
        return cast(Tensor, self.norm(projected + hidden))


class LinearHead(nn.Module):
    """One linear layer: W x + b."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.projection = nn.Linear(in_width, out_width)

    def forward(self, inputs: Tensor) -> Tensor:
        """[N, in_width] → [N, out_width]."""
        return cast(Tensor, self.projection(inputs))


def build_head(kind: HeadKind, in_width: int, out_width: int, dropout: float = 0.1) -> nn.Module:
    """A head by its kind. "none" passes its input on, so both widths must agree."""
    if kind == "mlp":
        return ProjectionHead(in_width, out_width, dropout)
    if kind == "linear":
        return LinearHead(in_width, out_width)
    if kind != "none":
        raise unknown("head", kind, ("mlp", "linear", "none"))
    if in_width != out_width:
        raise PairstillError(f"without a head {in_width} features cannot become an embedding of {out_width}.")
    return nn.Identity()
