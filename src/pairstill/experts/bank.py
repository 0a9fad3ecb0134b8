"""The bank: every checkpoint of every expert, as memory-mapped safetensors with a manifest that vouches for them.

A checkpoint is kept as its displacement from the anchor that all experts share, packed to six bits a number, and is
unpacked when it is asked for: nothing but the files' pages stays in memory, and processes share those.
"""

from __future__ import annotations

import contextlib
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
from pairstill.experts.packing import pack, unpack, unpack_blocks
from pairstill.runtime.files import (
    digest_of,
    read_manifest,
    read_sealed,
    read_tensors,
    remove,
    sha256,
    write_manifest,
    write_sealed,
    write_tensors,
)

FORMAT = 2
_GRAM_COLUMNS = 1 << 18
_GRAM_BYTES = 1 << 28
_SCALES = ":scales"
_VELOCITY = ":velocity"
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
    with the inner products of all displacements, layer by layer, from which merge ratios are read. An expert in
    training has `expert-000/unfinished.safetensors` besides, to go on from: its last epoch, not packed.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.towers: dict[str, Any] = manifest["towers"]
        self.dataset: str = manifest["dataset"]
        self.recipe: dict[str, Any] = manifest["recipe"]
        self._anchor_sha256: str = manifest["anchor_sha256"]
        self._packed: bool = manifest["packed"]
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
        packed: bool = True,
    ) -> Bank:
        """Start an empty bank. `dataset` is the fingerprint of the dataset that the experts are trained on.

        Epochs that another bank left in the folder are removed: nothing vouches for them.
        """
        for left in folder.glob("expert-*/*.safetensors"):
            left.unlink()
        write_tensors(folder / "anchor.safetensors", anchor)
        manifest = {
            "towers": dict(towers),
            "dataset": dataset,
            "recipe": dict(recipe),
            "anchor_sha256": sha256(folder / "anchor.safetensors"),
            "packed": packed,
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
        manifest = read_manifest(path)
        if manifest.get("format", 0) > FORMAT:
            raise PairstillError(f"{path} was written by a newer pairstill. Upgrade pairstill to read it.")
        try:
            return cls(folder, manifest)
        except (KeyError, TypeError) as error:
            raise PairstillError(
                f"{path} is damaged: {error!r} is missing or wrong. Train the experts again."
            ) from error

    def _write_manifest(self) -> None:
        write_manifest(
            self.folder / "bank.json",
            {
                "format": FORMAT,
                "towers": self.towers,
                "dataset": self.dataset,
                "recipe": self.recipe,
                "anchor_sha256": self._anchor_sha256,
                "packed": self._packed,
                "checkpoints": [asdict(checkpoint) for checkpoint in self.checkpoints],
            },
        )

    def add(self, expert: int, epochs: Sequence[Mapping[str, Tensor]]) -> None:
        """Add all epochs of one expert."""
        for epoch, parameters in enumerate(epochs, start=1):
            self.write_epoch(expert, epoch, parameters)
        self.complete(expert, range(1, len(epochs) + 1))

    def write_epoch(self, expert: int, epoch: int, parameters: Mapping[str, Tensor]) -> None:
        """Write one epoch of an expert that is still in training; the manifest does not know it yet."""
        name = _file_name(expert, epoch)
        write_tensors(self.folder / name, self._pack(parameters) if self._packed else parameters)
        self._opened.pop(name, None)

    def _pack(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        packed = {}
        for name, start in self.anchor.items():
            packed[name], packed[name + _SCALES] = pack(parameters[name] - start)
        return packed

    def keep_unfinished(
        self, expert: int, epoch: int, parameters: Mapping[str, Tensor], velocity: Mapping[str, Tensor]
    ) -> None:
        """Keep an expert in training as it is after `epoch`, to the bit, with what its momentum holds."""
        held = {f"{name}{_VELOCITY}": value for name, value in velocity.items()}
        write_sealed(self.folder / _unfinished(expert), {**parameters, **held}, {"epoch": epoch})

    def complete(self, expert: int, epochs: Sequence[int]) -> None:
        """Enter an expert, of which these epochs are on disk, into the manifest."""
        names = {epoch: _file_name(expert, epoch) for epoch in epochs}
        rows = [Checkpoint(expert, epoch, name, sha256(self.folder / name)) for epoch, name in names.items()]
        self.checkpoints = [row for row in self.checkpoints if row.expert != expert] + rows
        self.__dict__.pop("gram", None)
        self._write_manifest()
        self.forget_unfinished()

    def unfinished(self, expert: int) -> tuple[int, dict[str, Tensor], dict[str, Tensor]]:
        """How many epochs an expert in training has behind it, its parameters then, and what its momentum holds."""
        path = self.folder / _unfinished(expert)
        if not path.exists():
            return 0, self.anchor, {}
        try:
            tensors, state = read_sealed(path)
        except PairstillError as error:
            raise PairstillError(f"{error} Remove it: the expert is then trained anew.") from error
        velocity = {name.removesuffix(_VELOCITY): value for name, value in tensors.items() if name.endswith(_VELOCITY)}
        return state["epoch"], {name: tensors[name] for name in self.anchor}, velocity

    def epochs_on_disk(self, experts: Sequence[int]) -> int:
        """How many epochs of these experts are written, whether or not the manifest knows them."""
        return sum(len(list(self.folder.glob(f"expert-{expert:03d}/epoch-*.safetensors"))) for expert in experts)

    def forget_unfinished(self) -> None:
        """Remove what finished experts went on from."""
        for expert in self.experts:
            remove(self.folder / _unfinished(expert))

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
        """The parameters of checkpoint `index`."""
        stored = self._stored(index)
        if not self._packed:
            return stored
        scales = [stored[name + _SCALES] for name in self.anchor]
        sizes = [len(part) for part in scales]
        blocks = unpack_blocks(torch.cat([stored[name] for name in self.anchor]), torch.cat(scales)).split(sizes)
        return {
            name: part.view(-1)[: start.numel()].view(start.shape).add_(start)
            for (name, start), part in zip(self.anchor.items(), blocks, strict=True)
        }

    def _displacement(self, index: int, name: str) -> Tensor:
        """How far one layer of a checkpoint is from the anchor."""
        stored, start = self._stored(index), self.anchor[name]
        return unpack(stored[name], stored[name + _SCALES], start.shape) if self._packed else stored[name] - start

    def _stored(self, index: int) -> dict[str, Tensor]:
        """What is kept of a checkpoint, memory-mapped; mapped files stay open, which costs no memory."""
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
            with contextlib.suppress(PairstillError):  # damaged: it is only a cache
                stored, _ = read_sealed(path)
                if key in stored:
                    return stored[key]
        gram = self._inner_products()
        write_sealed(path, {key: gram}, {})
        return gram

    def _inner_products(self) -> Tensor:
        """Layer by layer, and of a large layer some checkpoints by some others, so that memory stays flat."""
        count = len(self.checkpoints)
        gram = torch.zeros(len(self.anchor), count, count, dtype=torch.float64)
        for layer, (name, start) in enumerate(self.anchor.items()):
            tiles = torch.arange(count).split(max(1, _GRAM_BYTES // max(1, start.numel() * start.element_size())))
            for place, rows in enumerate(tiles):
                ours = self._displacements(rows, name)
                for columns in tiles[place:]:
                    theirs = ours if columns is rows else self._displacements(columns, name)
                    gram[layer, rows[:, None], columns] = _products(ours, theirs)
            gram[layer] = gram[layer].triu() + gram[layer].triu(1).T
        return gram

    def _displacements(self, rows: Tensor, name: str) -> Tensor:
        return torch.stack([self._displacement(row, name).reshape(-1) for row in rows.tolist()])

    def fingerprint(self) -> str:
        """A digest of all that a distillation takes from this bank."""
        return digest_of([self.dataset, self.towers, self._anchor_sha256, *(row.sha256 for row in self.checkpoints)])


def _products(first: Tensor, second: Tensor) -> Tensor:
    """First @ second.T in double precision, without a copy of either in it."""
    total = torch.zeros(len(first), len(second), dtype=torch.float64)
    for begin in range(0, first.shape[1], _GRAM_COLUMNS):
        part = slice(begin, begin + _GRAM_COLUMNS)
        total += first[:, part].double() @ second[:, part].double().T
    return total


def _unfinished(expert: int) -> str:
    return f"expert-{expert:03d}/unfinished.safetensors"


def _file_name(expert: int, epoch: int) -> str:
    return f"expert-{expert:03d}/epoch-{epoch:03d}.safetensors"


def parameters_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """A detached copy of a model's named parameters, on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in model.named_parameters()}
