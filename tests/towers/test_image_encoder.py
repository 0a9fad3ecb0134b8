from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pairstill.errors import PairstillError
from pairstill.towers.image_encoder import freeze_norm_statistics, load_image_encoder
from pairstill.towers.weights import resolve_image


@pytest.fixture(scope="module")
def tiny():
    return load_image_encoder("test_efficientnet@random")


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("nfnet_l0", 2304),
        ("nf_resnet50", 2048),
        ("nf_regnet_b0", 960),
        ("nf_regnet_b1", 960),
        ("efficientnet_lite1", 1280),
    ],
)
def test_the_papers_encoders_have_their_widths(name: str, width: int) -> None:
    encoder = load_image_encoder(f"{name}@random")
    with torch.no_grad():
        assert encoder(torch.randn(1, 3, 32, 32)).shape == (1, width)
    assert encoder.width == width


@pytest.mark.parametrize(
    ("name", "mean"), [("efficientnet_lite0", (0.5, 0.5, 0.5)), ("mobilenetv2_100", (0.485, 0.456, 0.406))]
)
def test_package_weights_load_strictly_and_are_not_random(name: str, mean: tuple[float, ...]) -> None:
    if resolve_image(name).origin != "package":
        pytest.skip(f"the weights of {name} are not installed")
    encoder, random = load_image_encoder(name), load_image_encoder(f"{name}@random")
    assert encoder.width == 1280
    assert encoder.mean == mean
    assert encoder.fingerprint != random.fingerprint
    norms = [layer for layer in encoder.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert all((norm.running_var != 1).any() and (norm.running_mean != 0).any() for norm in norms)


def test_logits_are_the_classifier_on_the_pooled_features(tiny) -> None:
    logits = load_image_encoder("test_efficientnet@random", output="logits")
    pixels = torch.randn(2, 3, 64, 64)
    assert logits.width == 1000
    assert logits.fingerprint != tiny.fingerprint
    with torch.no_grad():
        torch.testing.assert_close(logits(pixels), logits.network.classifier(tiny(pixels)))


def test_random_weights_depend_on_the_name_only(tiny) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    again = load_image_encoder("test_efficientnet@random")
    assert torch.equal(torch.get_rng_state(), before)
    assert again.fingerprint == tiny.fingerprint


def test_normalise_takes_bytes_and_floats_and_has_an_inverse() -> None:
    encoder = load_image_encoder("test_resnet@random")
    images = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    pixels = encoder.normalise(images)
    by_hand = (images[1, 2].float() / 255 - encoder.mean[2]) / encoder.std[2]
    torch.testing.assert_close(pixels[1, 2], by_hand)
    torch.testing.assert_close(encoder.normalise(images.float() / 255), pixels)
    torch.testing.assert_close(encoder.denormalise(pixels), images.float() / 255)


def test_training_moves_scales_but_never_statistics(tiny) -> None:
    encoder = load_image_encoder("test_efficientnet@random").train()
    assert encoder.training and encoder.network.training
    norm = next(layer for layer in encoder.modules() if isinstance(layer, nn.BatchNorm2d))
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    optimizer = torch.optim.SGD(encoder.parameters(), lr=1.0)
    encoder(torch.randn(4, 3, 64, 64) + 3).square().mean().backward()
    optimizer.step()
    for name, value in encoder.state_dict().items():
        if "running" in name or "tracked" in name:
            assert torch.equal(value, before[name]), name
    assert norm.weight.grad is not None and norm.weight.grad.abs().sum() > 0


def test_statistics_of_any_module_can_be_frozen() -> None:
    module = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout()).train()
    freeze_norm_statistics(module)
    module(torch.randn(4, 3, 2, 2) + 1)
    assert not module[0].running_mean.any()
    assert module[1].training


def test_a_local_folder_loads(tiny, tmp_path: Path) -> None:
    network = load_image_encoder("test_efficientnet@random", output="logits").network
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "test_efficientnet"}))
    assert load_image_encoder(str(tmp_path)).fingerprint == tiny.fingerprint
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "test_resnet"}))
    with pytest.raises(PairstillError, match="does not hold a timm test_resnet"):
        load_image_encoder(str(tmp_path))
