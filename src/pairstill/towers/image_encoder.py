"""Image encoders: any timm network, as one module from normalised pixels to an embedding."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from pairstill.errors import PairstillError, unknown
from pairstill.runtime.files import digest_of, digest_of_tensors, read_json, read_tensors
from pairstill.runtime.seeds import global_seed
from pairstill.towers import keras_resnet
from pairstill.towers.npm_weights import npm_folder
from pairstill.towers.torchvision_shim import ensure_torchvision
from pairstill.towers.weights import ImageSource, cache_folder, hub_reachable, no_network, package_file, resolve_image

ImageOutput = Literal["pooled", "logits"]
Channels = tuple[float, float, float]


def freeze_norm_statistics(module: nn.Module) -> None:
    """Put every batch norm in eval mode: running statistics stay as they are, scale and shift still train."""
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.eval()


class ImageEncoder(nn.Module):
    """A timm network with its pixel normalisation. Its batch-norm statistics never change, even in `train()`.

    Attributes:
        name: The name it was asked for by.
        width: Length of an embedding.
        mean, std: Of each channel, for pixels in 0…1.
        fingerprint: Digest of weights, architecture and output: a key for caches.
    """

    def __init__(self, network: nn.Module, name: str, width: int, mean: Channels, std: Channels, key: str) -> None:
        super().__init__()
        self.network = network
        self.name = name
        self.width = width
        self.mean = mean
        self.std = std
        self.fingerprint = digest_of([key, digest_of_tensors(network.state_dict())])
        self.eval()

    def forward(self, pixels: Tensor) -> Tensor:
        """Normalised pixels [N, 3, H, W] → [N, width]."""
        return cast(Tensor, self.network(pixels.contiguous(memory_format=torch.channels_last)))

    def train(self, mode: bool = True) -> ImageEncoder:
        """As `nn.Module.train`, with batch norms kept in eval mode."""
        super().train(mode)
        freeze_norm_statistics(self)
        return self

    def normalise(self, images: Tensor) -> Tensor:
        """(x − mean) / std for images [..., 3, H, W], uint8 in 0…255 or float in 0…1."""
        pixels = images if images.is_floating_point() else images.float() / 255
        return (pixels - self._channels(self.mean, pixels)) / self._channels(self.std, pixels)

    def denormalise(self, pixels: Tensor) -> Tensor:
        """The inverse, as float: x · std + mean. Free pixels may fall outside 0…1."""
        return pixels * self._channels(self.std, pixels) + self._channels(self.mean, pixels)

    @staticmethod
    def _channels(values: Channels, like: Tensor) -> Tensor:
        return torch.tensor(values, dtype=like.dtype, device=like.device).view(3, 1, 1)


def load_image_encoder(name: str, output: ImageOutput = "pooled") -> ImageEncoder:
    """Load an image encoder.

    Args:
        name: A preset, a timm model name or a folder; see `pairstill.towers.weights`.
        output: "pooled" for the globally pooled features; "logits" for the classifier's output, which the
            published code of the paper uses as the embedding of NF-ResNet and NF-RegNet.

    Raises:
        PairstillError: The name is unknown or the weights cannot be had.
    """
    if output not in ("pooled", "logits"):
        raise unknown("image output", output, ("pooled", "logits"))
    source = resolve_image(name)
    network: Any = _build(source)
    if output == "pooled":
        network.reset_classifier(0)
        width = getattr(network, "head_hidden_size", None) or network.num_features
    else:
        width = network.num_classes
        if not width:
            raise PairstillError(f"image encoder '{name}' has no classifier; use the pooled output.")
    config = network.pretrained_cfg
    key = f"{config.get('architecture', source.preset.timm_name)}/{output}"
    mean, std = _three(config["mean"]), _three(config["std"])
    return ImageEncoder(network, name, int(width), mean, std, key)


def _three(values: Any) -> Channels:
    red, green, blue = map(float, values)
    return red, green, blue


def _build(source: ImageSource) -> nn.Module:
    """The network, classifier included, with the weights of its origin."""
    ensure_torchvision()
    if source.origin == "folder":
        return _from_folder(Path(source.name).expanduser())
    if source.origin == "hub":
        return _from_hub(source)
    with global_seed(0, source.name):
        network = _create(source.preset.timm_name)
    if source.origin == "package":
        _load_package(network, source)
    if source.origin == "npm":
        archive = source.preset.npm
        assert archive is not None, "resolve_image has seen it"
        keras_resnet.load(network, npm_folder(archive, keras_resnet.convert, cache_folder()))
    return network


def _create(timm_name: str, **options: Any) -> nn.Module:
    import timm

    return cast(nn.Module, timm.create_model(timm_name, **options))


def _load_package(network: nn.Module, source: ImageSource) -> None:
    """Load a package's weights. They keep timm's order and shapes under other names, so order decides."""
    path = package_file(source.preset.package or "", ".pth")
    assert path is not None, "resolve_image has seen the file"
    weights: Mapping[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    expected = network.state_dict()
    if [value.shape for value in weights.values()] != [value.shape for value in expected.values()]:
        raise PairstillError(f"{path} does not hold the weights of {source.preset.timm_name}; install it again.")
    network.load_state_dict(dict(zip(expected, weights.values(), strict=True)), strict=True)


def _from_folder(folder: Path) -> nn.Module:
    """A timm model saved as `config.json` (with "architecture") and `model.safetensors`."""
    config = read_json(folder / "config.json")
    architecture = config.get("architecture") if isinstance(config, dict) else None
    if not isinstance(architecture, str):
        raise PairstillError(f'{folder / "config.json"} names no timm model ("architecture").')
    weights = read_tensors(folder / "model.safetensors")
    resolve_image(f"{architecture}@random")  # an unknown architecture is an error with the nearest name
    try:
        with global_seed(0):
            network = _create(
                architecture,
                num_classes=config.get("num_classes", 1000),
                pretrained_cfg_overlay=config.get("pretrained_cfg") or {},
            )
        network.load_state_dict(weights, strict=True)
    except (RuntimeError, TypeError) as error:
        raise PairstillError(f"{folder} does not hold a timm {architecture}: {error}.") from error
    return network


def _from_hub(source: ImageSource) -> nn.Module:
    """Timm's own weights: downloaded, or from the local cache where there is no network."""
    import timm
    from huggingface_hub import try_to_load_from_cache

    name = source.preset.timm_name
    if source.preset.npm:
        raise PairstillError(f"the hub has other weights of {name}; use '{source.name}' or '{name}'.")
    config = timm.get_pretrained_cfg(name)
    if config is None or not config.has_weights:
        raise PairstillError(
            f"timm has no weights for '{source.name}'; use '{source.name}@random', or another encoder."
        )
    overlay: dict[str, Any] = {}
    if not hub_reachable():
        cached = try_to_load_from_cache(config.hf_hub_id, "model.safetensors") if config.hf_hub_id else None
        if not isinstance(cached, str):
            raise no_network("image", source.name)
        overlay = {"file": cached}
    try:
        return _create(name, pretrained=True, pretrained_cfg_overlay=overlay)
    except OSError as error:
        raise no_network("image", source.name) from error
    except RuntimeError as error:  # for example a tag that timm does not know
        raise PairstillError(f"timm could not load '{name}': {error}") from error
