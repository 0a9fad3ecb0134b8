from __future__ import annotations

import pytest
import torch
from torch import nn

from pairstill.errors import PairstillError
from pairstill.towers.heads import LinearHead, ProjectionHead, build_head


def test_projection_head_is_the_papers_formula() -> None:
    head = ProjectionHead(6, 4).eval()
    inputs = torch.randn(3, 6)
    projected = inputs @ head.projection.weight.T + head.projection.bias
    gelu = projected * 0.5 * (1 + torch.erf(projected / 2**0.5))
    summed = projected + gelu @ head.hidden.weight.T + head.hidden.bias
    expected = (summed - summed.mean(1, keepdim=True)) / (summed.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(head(inputs), expected)


def test_dropout_acts_in_training_only() -> None:
    head, inputs = ProjectionHead(8, 8, dropout=0.5), torch.randn(4, 8)
    assert not torch.equal(head.train()(inputs), head(inputs))
    assert torch.equal(head.eval()(inputs), head(inputs))


def test_build_head_by_kind() -> None:
    assert isinstance(build_head("mlp", 3, 2, 0.2).dropout, nn.Dropout)
    assert isinstance(build_head("linear", 3, 2), LinearHead)
    assert build_head("linear", 3, 2)(torch.randn(5, 3)).shape == (5, 2)
    assert isinstance(build_head("none", 3, 3), nn.Identity)
    with pytest.raises(PairstillError, match="cannot become"):
        build_head("none", 3, 2)
    with pytest.raises(PairstillError, match="Did you mean 'linear'"):
        build_head("liner", 3, 2)  # type: ignore[arg-type]
