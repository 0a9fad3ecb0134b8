"""The bank: every checkpoint of every expert, as memory-mapped safetensors with a manifest that vouches for them."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pairstill.errors import PairstillError
from pairstill.files import (
    digest_of,
    read_json,
    read_tensors,
    sha256,
    write_json,
    write_tensors,
)

FORMAT = 1
_GRAM_COLUMNS = 1 << 18
_FILE_NAME = re.compile(r"anchor\.safetensors|expert-\d+/epoch-\d+\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """One expert after one epoch."""

    expert: int
    epoch: int
    file: str
    sha256: str


class Bank:
    """Checkpoints of experts that share one anchor.

    On disk: `bank.json`, `anchor.safetensors`, `expert-000/epoch-001.safetensors`, ..., and `gram.safetensors`
    with the inner products of all displacements, layer by layer, from which merge ratios are read.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.towers: dict[str, Any] = manifest["towers"]
        self.dataset: str = manifest["dataset"]
        self.recipe: dict[str, Any] = manifest["recipe"]
        self._anchor_sha256: str = manifest["anchor_sha256"]
        self.checkpoints = [Checkpoint(**row) for row in manifest["checkpoints"]]
        self._opened: dict[str, dict[str, Tensor]] = {}

    @classmethod
    def create(
        cls,
        folder: Path,
        anchor: Mapping[str, Tensor],
        towers: Mapping[str, Any],
        dataset: str,
        recipe: Mapping[str, Any],
    ) -> Bank:
        """Start an empty bank. `dataset` is the fingerprint of the dataset that the experts are trained on.

        Epochs that another bank left in the folder are removed: nothing vouches for them.
        """
        for left in folder.glob("expert-*/epoch-*.safetensors"):
            left.unlink()
        write_tensors(folder / "anchor.safetensors", anchor)
        manifest = {
            "towers": dict(towers),
            "dataset": dataset,
            "recipe": dict(recipe),
            "anchor_sha256": sha256(folder / "anchor.safetensors"),
            "checkpoints": [],
        }
        bank = cls(folder, manifest)
        bank._write_manifest()
        return bank

    @classmethod
    def open(cls, folder: Path) -> Bank:
        """Open a bank; files are verified when they are first read."""
        path = folder / "bank.json"
        if not path.exists():
            raise PairstillError(
                f"{folder} is not a bank of experts: it has no bank.json. Make one: pairstill experts."
            )
        manifest = read_json(path)
        if not isinstance(manifest, dict) or manifest.get("format", 0) > FORMAT:
            raise PairstillError(f"{path} was written by a newer pairstill. Upgrade pairstill to read it.")
        try:
            return cls(folder, manifest)
        except (KeyError, TypeError) as error:
            raise PairstillError(
                f"{path} is damaged: {error!r} is missing or wrong. Train the experts again."
            ) from error

    def _write_manifest(self) -> None:
        write_json(
            self.folder / "bank.json",
            {
                "format": FORMAT,
                "towers": self.towers,
                "dataset": self.dataset,
                "recipe": self.recipe,
                "anchor_sha256": self._anchor_sha256,
                "checkpoints": [asdict(checkpoint) for checkpoint in self.checkpoints],
            },
        )

    def add(self, expert: int, epochs: Sequence[Mapping[str, Tensor]]) -> None:
        """Add all epochs of one expert."""
        for epoch, parameters in enumerate(epochs, start=1):
            self.write_epoch(expert, epoch, parameters)
        self.complete(expert, len(epochs))

    def write_epoch(self, expert: int, epoch: int, parameters: Mapping[str, Tensor]) -> None:
        """Write one epoch of an expert that is still in training; the manifest does not know it yet."""
        name = _file_name(expert, epoch)
        write_tensors(self.folder / name, parameters)
        self._opened.pop(name, None)

    def complete(self, expert: int, epochs: int) -> None:
        """Enter an expert, whose epochs are all on disk, into the manifest."""
        names = {epoch: _file_name(expert, epoch) for epoch in range(1, epochs + 1)}
        rows = [Checkpoint(expert, epoch, name, sha256(self.folder / name)) for epoch, name in names.items()]
        self.checkpoints = [row for row in self.checkpoints if row.expert != expert] + rows
        self.__dict__.pop("gram", None)
        self._write_manifest()

    def last_epoch(self, expert: int, most: int) -> tuple[int, dict[str, Tensor]]:
        """How many epochs of an expert, at most `most`, are on disk, and the parameters that it has then."""
        epoch = 0
        while epoch < most and (self.folder / _file_name(expert, epoch + 1)).exists():
            epoch += 1
        return epoch, read_tensors(self.folder / _file_name(expert, epoch)) if epoch else self.anchor

    def check(self, towers: Mapping[str, Any], dataset: str) -> None:
        """Refuse a bank that was made for other towers or another dataset."""
        changed = [key for key in towers if towers[key] != self.towers.get(key)]
        if changed:
            lines = ", ".join(f"{key} is {self.towers.get(key)!r} there and {towers[key]!r} here" for key in changed)
            raise PairstillError(f"the bank {self.folder} was made for other towers: {lines}. Train experts for these.")
        if dataset != self.dataset:
            raise PairstillError(
                f"the bank {self.folder} was made from another dataset (fingerprint {self.dataset}, here {dataset}). "
                "Train experts on this one."
            )

    @property
    def experts(self) -> list[int]:
        """The numbers of the experts that are complete."""
        return sorted({checkpoint.expert for checkpoint in self.checkpoints})

    def first(self, count: int | None) -> Bank:
        """The same bank with its first experts only; whole, if `count` is None."""
        if count is None:
            return self
        if count > len(self.experts):
            raise PairstillError(f"the bank {self.folder} has {len(self.experts)} experts, not {count}. Train more.")
        kept = set(self.experts[:count])
        rows = [index for index, checkpoint in enumerate(self.checkpoints) if checkpoint.expert in kept]
        part = copy.copy(self)
        part.checkpoints = [self.checkpoints[row] for row in rows]
        part.__dict__["gram"] = self.gram[:, rows][:, :, rows]
        return part

    @cached_property
    def anchor(self) -> dict[str, Tensor]:
        """The parameters that every expert started from."""
        return self._read("anchor.safetensors", self._anchor_sha256)

    def parameters(self, index: int) -> dict[str, Tensor]:
        """The parameters of checkpoint `index`, memory-mapped; mapped files stay open, which costs no memory."""
        checkpoint = self.checkpoints[index]
        return self._read(checkpoint.file, checkpoint.sha256)

    def rows_of(self, expert: int) -> list[int]:
        """Indices of one expert's checkpoints, by epoch."""
        rows = [(row.epoch, index) for index, row in enumerate(self.checkpoints) if row.expert == expert]
        return [index for _, index in sorted(rows)]

    def _read(self, name: str, expected: str) -> dict[str, Tensor]:
        path = self.folder / name
        if not _FILE_NAME.fullmatch(name):
            raise PairstillError(f"{self.folder / 'bank.json'} names a file that no bank has: {name!r}.")
        if name not in self._opened:
            if sha256(path) != expected:
                raise PairstillError(f"{path} is not the file that the bank recorded: its hash differs. Train again.")
            self._opened[name] = read_tensors(path)
        return self._opened[name]

    @cached_property
    def gram(self) -> Tensor:
        """[L, C, C] inner products of the displacements of all checkpoints, one matrix a layer; kept on disk."""
        path = self.folder / "gram.safetensors"
        key = digest_of([self._anchor_sha256, *(checkpoint.sha256 for checkpoint in self.checkpoints)])
        if path.exists():
            stored = read_tensors(path)
            if key in stored:
                return stored[key]
        gram = self._inner_products()
        write_tensors(path, {key: gram})
        return gram

    def _inner_products(self) -> Tensor:
        everything = [self.parameters(index) for index in range(len(self.checkpoints))]
        layers = []
        for name, start in self.anchor.items():
            gram = torch.zeros(len(everything), len(everything), dtype=torch.float64)
            flat = start.reshape(-1)
            for begin in range(0, flat.numel(), _GRAM_COLUMNS):
                part = slice(begin, begin + _GRAM_COLUMNS)
                block = torch.stack([parameters[name].reshape(-1)[part] for parameters in everything]) - flat[part]
                block = block.double()
                gram += block @ block.T
            layers.append(gram)
        return torch.stack(layers)

    def fingerprint(self) -> str:
        """A digest of all that a distillation takes from this bank."""
        return digest_of([self.dataset, self.towers, self._anchor_sha256, *(row.sha256 for row in self.checkpoints)])


def _file_name(expert: int, epoch: int) -> str:
    return f"expert-{expert:03d}/epoch-{epoch:03d}.safetensors"


def parameters_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """A detached copy of a model's named parameters, on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in model.named_parameters()}
