import json

import numpy as np
import pytest
import torch
from torch.nn.functional import conv2d

from pairstill.towers import keras_resnet
from pairstill.towers.image_encoder import load_image_encoder
from pairstill.towers.keras_resnet import keras_names


@pytest.fixture(scope="module")
def arrays():
    """Random weights under Keras' names and in its layouts."""
    import timm

    random, found = np.random.default_rng(0), {}
    shapes = {name: tuple(value.shape) for name, value in timm.create_model("resnet50").state_dict().items()}
    for conv, (of_conv, of_norm) in keras_names().items():
        out, inside, high, wide = shapes[f"{conv}.weight"]
        kernel = random.standard_normal((high, wide, inside, out)) / np.sqrt(inside * high * wide)
        found |= {f"{of_conv}/kernel": kernel, f"{of_conv}/bias": random.standard_normal(out)}
        for part in ("gamma", "beta", "moving_mean", "moving_variance"):
            found[f"{of_norm}/{part}"] = random.uniform(0.5, 1.0, out)
    found |= {"fc1000/kernel": random.standard_normal((2048, 1000)), "fc1000/bias": random.standard_normal(1000)}
    return {name: value.astype("<f4") for name, value in found.items()}


@pytest.fixture(scope="module")
def encoder(arrays, tmp_path_factory):
    """The encoder by its name, from shards as TensorFlow.js keeps them."""
    source = tmp_path_factory.mktemp("shards")
    data = b"".join(value.tobytes() for value in arrays.values())
    cut = len(data) // 2 - 3  # inside an array, and inside a number
    (source / "1.bin").write_bytes(data[:cut])
    (source / "2.bin").write_bytes(data[cut:])
    weights = [{"name": name, "shape": list(value.shape), "dtype": "float32"} for name, value in arrays.items()]
    (source / "model.json").write_text(
        json.dumps({"weightsManifest": [{"paths": ["1.bin", "2.bin"], "weights": weights}]})
    )
    target = tmp_path_factory.mktemp("cache")
    keras_resnet.convert(source, target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pairstill.towers.image_encoder.npm_folder", lambda archive, convert, cache: target)
        return load_image_encoder("resnet50_keras", "logits")


def norm(values, arrays, name):
    """Keras' batch norm at inference."""
    gamma, beta, mean, var = (
        torch.from_numpy(arrays[f"{name}/{part}"]).view(-1, 1, 1)
        for part in ("gamma", "beta", "moving_mean", "moving_variance")
    )
    return gamma * (values - mean) / torch.sqrt(var + 1e-3) + beta


def conv(values, arrays, name, stride=1, padding=0):
    """Keras' convolution, with its bias."""
    kernel = torch.from_numpy(arrays[f"{name}/kernel"].transpose(3, 2, 0, 1).copy())
    return conv2d(values, kernel, torch.from_numpy(arrays[f"{name}/bias"]), stride, padding)


def by_hand(image, arrays):
    """The network as Keras has it, from RGB in 0...255."""
    x = image.flip(1) - torch.tensor([103.939, 116.779, 123.68]).view(1, 3, 1, 1)
    x = norm(conv(x, arrays, "conv1", 2, 3), arrays, "bn_conv1").relu()
    x = torch.nn.functional.max_pool2d(x, 3, 2, 1)
    for layer, blocks in enumerate((3, 4, 6, 3), 2):
        for block in range(blocks):
            place = f"{layer}{'abcdef'[block]}_branch"
            stride = 2 if block == 0 and layer > 2 else 1
            y = norm(conv(x, arrays, f"res{place}2a", stride), arrays, f"bn{place}2a").relu()
            y = norm(conv(y, arrays, f"res{place}2b", 1, 1), arrays, f"bn{place}2b").relu()
            y = norm(conv(y, arrays, f"res{place}2c"), arrays, f"bn{place}2c")
            if block == 0:
                x = norm(conv(x, arrays, f"res{place}1", stride), arrays, f"bn{place}1")
            x = (x + y).relu()
    x = x.mean((2, 3))
    return x @ torch.from_numpy(arrays["fc1000/kernel"]) + torch.from_numpy(arrays["fc1000/bias"])


@torch.no_grad()
def test_the_network_is_that_of_keras(encoder, arrays):
    image = torch.randint(0, 256, (2, 3, 65, 65), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = by_hand(image.float(), arrays)
    torch.testing.assert_close(
        encoder(encoder.normalise(image)), expected, rtol=1e-3, atol=1e-3 * expected.std().item()
    )


def test_it_folds_and_has_a_fingerprint_of_its_own(encoder):
    from pairstill.towers.folding import find_foldable, is_faithful, noise_for

    assert is_faithful(encoder, find_foldable(encoder, noise_for(encoder, 64)), 64)
    assert encoder.width == 1000
    assert encoder.fingerprint != load_image_encoder("resnet50@random", "logits").fingerprint


def test_numbers_of_another_type_are_refused(tmp_path):
    from pairstill.errors import PairstillError

    weights = [{"name": "x", "shape": [1], "dtype": "int8"}]
    (tmp_path / "model.json").write_text(json.dumps({"weightsManifest": [{"paths": [], "weights": weights}]}))
    with pytest.raises(PairstillError, match="x is int8, not float32"):
        keras_resnet.read_shards(tmp_path)
