"""Banks from the trajectory buffers of LoRS and MTT-VL: lists of parameters in `.pt` files.

Such a file is a pickle: it goes through torch's restricted reader, which makes tensors, lists and dicts, no code.
"""

from __future__ import annotations

import pickle  # for the name of an error of that reader only
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pairstill.errors import PairstillError
from pairstill.experts.bank import Bank
from pairstill.features.encoded_dataset import EncodedDataset
from pairstill.runtime.progress import console

Parameters = dict[str, Tensor]


def import_buffers(
    encoded: EncodedDataset, folder: Path, image_files: Sequence[Path], text_files: Sequence[Path]
) -> Bank:
    """Make a bank of experts from pairs of buffer files.

    A buffer is a list of experts; an expert is a list of epochs, the first before training; an epoch is a list of
    tensors in the order of the module's parameters, or a state dict. `image_files[i]` holds the image tower of the
    experts whose text projector is in `text_files[i]`.
    """
    if len(image_files) != len(text_files) or not image_files:
        raise PairstillError(
            f"buffers come in pairs: there are {len(image_files)} image and {len(text_files)} text files."
        )
    if (folder / "bank.json").exists():
        raise PairstillError(f"{folder} already holds a bank. Choose another --out.")
    shapes = {name: p.shape for name, p in encoded.new_model(seed=0).named_parameters()}
    files = list(zip(image_files, text_files, strict=True))
    for pair in files:
        _read_experts(*pair, shapes)  # all are checked before anything is written
    bank: Bank | None = None
    for pair in files:
        for epochs in _read_experts(*pair, shapes):
            bank = bank or _create(encoded, folder, epochs[0])
            _warn_if_other_anchor(bank, epochs[0])
            bank.add(len(bank.experts), epochs[1:])
    assert bank is not None
    return bank


def _read_experts(image_file: Path, text_file: Path, shapes: Mapping[str, torch.Size]) -> list[list[Parameters]]:
    """Experts, each a list of whole models, from the two files that hold their towers."""
    image_experts = _read(image_file, {n: shape for n, shape in shapes.items() if not n.startswith("text_head.")})
    text_experts = _read(text_file, {n: shape for n, shape in shapes.items() if n.startswith("text_head.")})
    if [len(expert) for expert in image_experts] != [len(expert) for expert in text_experts]:
        raise PairstillError(f"{image_file} and {text_file} hold different numbers of experts or epochs.")
    return [
        [{**image, **text} for image, text in zip(image_epochs, text_epochs, strict=True)]
        for image_epochs, text_epochs in zip(image_experts, text_experts, strict=True)
    ]


def _create(encoded: EncodedDataset, folder: Path, anchor: Parameters) -> Bank:
    return Bank.create(folder, anchor, encoded.identity(), encoded.dataset.fingerprint, {"imported": True})


def _warn_if_other_anchor(bank: Bank, start: Parameters) -> None:
    """Say when an expert started elsewhere: its displacement then says less about what it learnt."""
    other = [name for name, value in start.items() if not torch.equal(value, bank.anchor[name])]
    if other:
        console.print(
            f"[yellow]note:[/] expert {len(bank.experts)} did not start from the first one's weights "
            f"({len(other)} tensors, such as {other[0]}): merge ratios of these layers mean little."
        )


def _read(path: Path, shapes: Mapping[str, torch.Size]) -> list[list[Parameters]]:
    try:
        experts = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise PairstillError(f"{path} does not exist.") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise PairstillError(
            f"{path} is not a buffer that can be read safely: {str(error).splitlines()[0]}. Only tensors, lists and "
            "dicts are accepted; code is never run."
        ) from error
    if not isinstance(experts, list) or not experts:
        raise PairstillError(f"{path}: a buffer is a list of experts, not {type(experts).__name__}.")
    return [
        [_epoch(epoch, shapes, path, e, i) for i, epoch in enumerate(_epochs(expert, path))]
        for e, expert in enumerate(experts)
    ]


def _epochs(expert: Any, path: Path) -> list[Any]:
    if not isinstance(expert, list) or len(expert) < 2:
        raise PairstillError(f"{path}: an expert is a list of at least two epochs, the first before training.")
    return expert


def _epoch(epoch: Any, shapes: Mapping[str, torch.Size], path: Path, expert: int, number: int) -> Parameters:
    """One epoch's tensors under this package's names; by order, as both list a module's parameters in its order."""
    values = epoch
    if isinstance(epoch, dict):  # a state dict may hold buffers (batch norm statistics) besides the parameters
        named = [value for name, value in epoch.items() if any(own.endswith(name) for own in shapes)]
        values = named if len(named) == len(shapes) else list(epoch.values())
    where = f"{path}, expert {expert}, epoch {number}"
    if not isinstance(values, list) or not all(isinstance(value, Tensor) for value in values):
        raise PairstillError(f"{where}: an epoch is a list of tensors or a state dict.")
    if len(values) != len(shapes):
        raise PairstillError(f"{where}: {len(values)} tensors, but these towers have {len(shapes)}.")
    for (name, shape), value in zip(shapes.items(), values, strict=True):
        if value.shape != shape:
            raise PairstillError(f"{where}: {name} is {tuple(value.shape)}, but these towers have {tuple(shape)}.")
        if not torch.isfinite(value).all():
            raise PairstillError(f"{where}: {name} has NaN or infinite values.")
    return {name: value.detach().float().clone() for name, value in zip(shapes, values, strict=True)}
