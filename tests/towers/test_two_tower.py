from __future__ import annotations

import pytest
import torch
from torch import nn

from pairstill.errors import PairstillError
from pairstill.towers.image_encoder import load_image_encoder
from pairstill.towers.two_tower import Towers, build_model

HEADS = Towers(image="test_efficientnet@random", image_size=64, embed_dim=32)
FULL = Towers(image="test_efficientnet@random", image_size=64, train="full")


@pytest.fixture(scope="module")
def encoder():
    return load_image_encoder(HEADS.image)


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_heads_model_takes_features(encoder) -> None:
    model = build_model(HEADS, encoder, text_width=12, seed=0)
    image, text = model(torch.randn(5, encoder.width), torch.randn(5, 12))
    assert image.shape == text.shape == (5, 32)
    torch.testing.assert_close(image.norm(dim=1), torch.ones(5))
    torch.testing.assert_close(text.norm(dim=1), torch.ones(5))
    assert isinstance(model.body, nn.Identity)


def test_full_model_takes_pixels_and_is_as_wide_as_its_backbone(encoder) -> None:
    model = build_model(FULL, encoder, text_width=12, seed=0)
    image, text = model(torch.randn(2, 3, 64, 64), torch.randn(2, 12))
    assert image.shape == text.shape == (2, encoder.width)
    assert isinstance(model.image_head, nn.Identity)


@pytest.mark.parametrize("towers", [HEADS, FULL])
def test_every_parameter_is_trained(encoder, towers: Towers) -> None:
    model = build_model(towers, encoder, text_width=12, seed=0)
    inputs = torch.randn(3, 3, 64, 64) if towers.train == "full" else torch.randn(3, encoder.width)
    image, text = model(inputs, torch.randn(3, 12))
    (image * text.detach().roll(1) + text * image.detach().roll(1)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_training_the_full_model_leaves_the_encoder_and_its_statistics_alone(encoder) -> None:
    fingerprint = [value.clone() for value in encoder.state_dict().values()]
    model = build_model(FULL, encoder, text_width=12, seed=0)
    statistics = {name: value.clone() for name, value in model.named_buffers()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 3, 64, 64), torch.randn(4, 12))[0][:, 0].sum().backward()
    optimizer.step()
    assert all(torch.equal(value, statistics[name]) for name, value in model.named_buffers())
    assert all(torch.equal(a, b) for a, b in zip(fingerprint, encoder.state_dict().values(), strict=True))
    assert not same(model.body, encoder)


def test_the_seed_alone_decides_the_heads(encoder) -> None:
    torch.manual_seed(1)
    first = build_model(HEADS, encoder, text_width=12, seed=3)
    torch.manual_seed(2)
    assert same(first, build_model(HEADS, encoder, text_width=12, seed=3))
    assert not same(first, build_model(HEADS, encoder, text_width=12, seed=4))
    assert not torch.equal(first.image_head.hidden.weight, first.text_head.hidden.weight)


def test_settings_survive_a_round_trip_and_describe_themselves() -> None:
    assert Towers.from_dict(FULL.to_dict()) == FULL
    assert Towers(image_size=112).describe() == "efficientnet_lite0@112 + minilm, heads"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train": "head"}, "Did you mean 'heads'"),
        ({"image_size": 0}, "image_size"),
        ({"embed_dim": 1.5}, "embed_dim"),
        ({"dropout": 1.0}, "dropout"),
        ({"image": ""}, "needs a name"),
        ({"text": "bert@nowhere"}, "origin"),
        ({"projektor": "mlp"}, "Did you mean 'projector'"),
    ],
)
def test_nonsense_is_refused(values: dict, message: str) -> None:
    with pytest.raises(PairstillError, match=message):
        Towers.from_dict(values)
