"""ResNet-50 with Keras' ImageNet weights, from the shards that TensorFlow.js reads, as a timm network.

Keras' network is the original one: a block shrinks in its first convolution, where timm's does so in its second; batch
norms have an epsilon of 0.001; convolutions have biases; channels come as BGR in 0...255, less their means.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from pairstill.errors import PairstillError
from pairstill.runtime.files import read_json, read_tensors, write_tensors

EPSILON = 1e-3
MEAN = (123.68 / 255, 116.779 / 255, 103.939 / 255)
STD = (1 / 255, 1 / 255, 1 / 255)
BLOCKS = (3, 4, 6, 3)

_NORM = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}


def read_shards(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """All arrays of a TensorFlow.js model (`model.json` and its shards), by name."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for group in read_json(folder / "model.json")["weightsManifest"]:
        data = b"".join((folder / path).read_bytes() for path in group["paths"])
        start = 0
        for weight in group["weights"]:
            if weight["dtype"] != "float32":
                raise PairstillError(f"{folder}: {weight['name']} is {weight['dtype']}, not float32.")
            count = int(np.prod(weight["shape"]))
            arrays[weight["name"]] = np.frombuffer(data, "<f4", count, start).reshape(weight["shape"])
            start += 4 * count
    return arrays


def keras_names() -> dict[str, tuple[str, str]]:
    """Keras' convolution and batch norm, by the name that timm's convolution has; its norm's is derived from it."""
    names = {"conv1": ("conv1", "bn_conv1")}
    for layer, blocks in enumerate(BLOCKS, 1):
        for block in range(blocks):
            own = f"{layer + 1}{chr(ord('a') + block)}_branch"
            ours = f"layer{layer}.{block}"
            names |= {f"{ours}.conv{n}": (f"res{own}2{part}", f"bn{own}2{part}") for n, part in enumerate("abc", 1)}
            if block == 0:
                names[f"{ours}.downsample.0"] = f"res{own}1", f"bn{own}1"
    return names


def norm_of(conv: str) -> str:
    """The batch norm behind a convolution of timm's ResNet."""
    return f"{conv[:-1]}1" if "downsample" in conv else conv.replace("conv", "bn")


def as_timm(arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Tensor]:
    """Keras' arrays under timm's names: kernels transposed, biases in the running means, RGB for BGR."""
    state: dict[str, Tensor] = {}
    for conv, (of_conv, of_norm) in keras_names().items():
        kernel = torch.from_numpy(arrays[f"{of_conv}/kernel"].transpose(3, 2, 0, 1).copy())
        state[f"{conv}.weight"] = kernel.flip(1).contiguous() if conv == "conv1" else kernel
        norm = {ours: torch.from_numpy(arrays[f"{of_norm}/{theirs}"].copy()) for theirs, ours in _NORM.items()}
        norm["running_mean"] -= torch.from_numpy(arrays[f"{of_conv}/bias"].copy())
        state |= {f"{norm_of(conv)}.{name}": value for name, value in norm.items()}
    state["fc.weight"] = torch.from_numpy(arrays["fc1000/kernel"].T.copy())
    state["fc.bias"] = torch.from_numpy(arrays["fc1000/bias"].copy())
    return state


def convert(source: Path, target: Path) -> None:
    """From a TensorFlow.js model to one file of timm's tensors."""
    write_tensors(target / "model.safetensors", as_timm(read_shards(source)))


def load(network: nn.Module, folder: Path) -> None:
    """Make timm's ResNet-50 Keras' one, with the weights of a converted folder."""
    state = read_tensors(folder / "model.safetensors")
    counts = {name: value for name, value in network.state_dict().items() if name.endswith("num_batches_tracked")}
    network.load_state_dict({**counts, **state}, strict=True)
    as_keras(network)


def as_keras(network: nn.Module) -> None:
    """Strides, epsilon and normalisation of Keras' ResNet-50 for timm's."""
    for layer in (2, 3, 4):
        block = cast(Any, network.get_submodule(f"layer{layer}.0"))
        block.conv1.stride, block.conv2.stride = (2, 2), (1, 1)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = EPSILON
    config = cast(Any, network).pretrained_cfg
    network.pretrained_cfg = {**config, "architecture": "resnet50_keras", "mean": MEAN, "std": STD}  # type: ignore[assignment]
