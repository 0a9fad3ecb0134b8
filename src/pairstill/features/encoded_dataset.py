"""Encoded: a dataset bound to towers, so that every later stage asks for tensors and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pairstill.data.captions import ChosenCaptions
from pairstill.data.decoding import load_pixels
from pairstill.data.pair_dataset import PairDataset
from pairstill.errors import PairstillError
from pairstill.features.feature_cache import Matrix, Pixels, image_features, pixel_bytes, text_features, view_features
from pairstill.features.subset_selection import PairFeatures
from pairstill.features.training_pairs import Inputs, TensorInputs, TrainingPairs
from pairstill.runtime.process_group import data_parallel
from pairstill.runtime.row_matrix import RowMatrix, RowSubset, StoredMatrix
from pairstill.towers.folding import fold
from pairstill.towers.image_encoder import ImageEncoder, load_image_encoder
from pairstill.towers.passes import Passes
from pairstill.towers.text_encoder import load_text_encoder
from pairstill.towers.two_tower import Towers, TwoTower, build_model

ENCODE_AT_ONCE = 64


@dataclass(frozen=True)
class EncodedSplit:
    """One split: its pairs as tensors, its captions, and which images of the dataset it holds."""

    pairs: TrainingPairs
    captions: Sequence[str]
    images: Tensor


class EncodedDataset:
    """A dataset through a pair of frozen encoders.

    In towers `heads` the image tower's inputs are cached features; in `full` they are pixels. Everything else
    (experts, teachers, students) is the same code for both.
    """

    def __init__(
        self,
        dataset: PairDataset,
        towers: Towers,
        cache: Path,
        workers: int = 0,
        device: str = "cpu",
        passes: Passes = Passes(),  # noqa: B008 (a frozen value)
    ) -> None:
        self.dataset, self.towers, self.cache = dataset, towers, cache
        self.workers, self.device, self.passes = workers, device, passes
        if device == "cuda":  # here, since every process that computes comes by: the same seed gives the same bytes
            torch.backends.cudnn.deterministic = True
        self.image_encoder: ImageEncoder = load_image_encoder(towers.image, towers.image_output)
        text_encoder = load_text_encoder(towers.text, towers.text_pooling).to(device)
        self.text_width = text_encoder.width
        self.encoders = {"image": self.image_encoder.fingerprint, "text": text_encoder.fingerprint}
        self.texts: RowMatrix = StoredMatrix(text_features(cache, dataset, text_encoder).matrix())

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens the dataset itself: what is cached lies on disk."""
        return EncodedDataset, (self.dataset, self.towers, self.cache, self.workers, self.device, self.passes)

    @cached_property
    def image_features(self) -> RowMatrix:
        """Features of every image from the pretrained image encoder [I, d]."""
        size = self.towers.image_size
        wanted = image_features(self.cache, self.dataset, self.image_encoder, size, self.workers, self.device)
        return StoredMatrix(wanted.matrix())

    def views(self, split: EncodedSplit, count: int) -> Matrix:
        """Features of `count` views of each of a split's images [I, count, d], memory-mapped."""
        size, rows = self.towers.image_size, split.images.numpy()
        encoder, workers = self.image_encoder, self.workers
        return view_features(self.cache, self.dataset, encoder, size, rows, count, workers, self.device).matrix()

    @cached_property
    def _pixels(self) -> Pixels:
        size = self.towers.image_size
        matrix = pixel_bytes(self.cache, self.dataset, size, self.workers).matrix()
        return Pixels(matrix, self.image_encoder.normalise)

    def split(self, name: str, augment: bool = False) -> EncodedSplit:
        """One split. With `augment`, images in towers `full` are augmented as experts are trained."""
        split = self.dataset.split(name)
        images, captions = torch.from_numpy(split.images), torch.from_numpy(split.captions)
        texts = RowSubset(self.texts, captions)
        pairs = TrainingPairs(self._inputs(images, augment), texts, torch.from_numpy(split.links))
        return EncodedSplit(pairs, ChosenCaptions(self.dataset.captions, split.captions), images)

    def _inputs(self, rows: Tensor, augment: bool) -> Inputs:
        if self.towers.train == "heads":
            return TensorInputs(RowSubset(self.image_features, rows))
        from pairstill.data.augmentation import expert_augmentation

        return RowsOf(self._pixels if not augment else self._augmented(expert_augmentation), rows)

    def _augmented(self, augmentation: Any) -> Pixels:
        return Pixels(self._pixels.matrix, self._pixels.normalise, augmentation)

    def pair_features(self, split: EncodedSplit) -> PairFeatures:
        """The pretrained encoders' features of a split, for choosing pairs."""
        return PairFeatures(self.split_features(split), split.pairs.texts, split.pairs.links)

    def split_features(self, split: EncodedSplit) -> RowMatrix:
        """The pretrained image encoder's features of a split's images [I, d]."""
        return RowSubset(self.image_features, split.images)

    def pictures(self, images: Tensor) -> Tensor:
        """Images of the dataset, decoded now, as normalised pixels [n, 3, S, S]."""
        blocks = load_pixels(self.dataset.images, images.numpy(), self.towers.image_size)
        pixels = torch.from_numpy(np.concatenate(list(blocks)))
        return self.image_encoder.normalise(pixels)

    @cached_property
    def front(self) -> nn.Module:
        """What stands before the trained part of the image tower: the frozen backbone in `heads`, nothing in `full`."""
        return nn.Identity() if self.towers.train == "full" else self.backbone

    @cached_property
    def backbone(self) -> nn.Module:
        """The frozen, pretrained image encoder, folded."""
        return fold(self.image_encoder, self.towers.image_size).to(self.device)

    def through_front(self, pixels: Tensor) -> Tensor:
        """Pixels [N, 3, S, S] to what the image tower reads, with gradients to the pixels."""
        return pixels if self.towers.train == "full" else self.through_backbone(pixels)

    def through_backbone(self, pixels: Tensor) -> Tensor:
        """Pixels [N, 3, S, S] to features [N, d] of the pretrained encoder, with gradients to the pixels."""
        return data_parallel(partial(self.passes, self.backbone), pixels)

    def to_inputs(self, images: Tensor) -> Tensor:
        """Pixels [N, 3, S, S] to what the image tower reads, without gradients."""
        with torch.no_grad():
            blocks = images.detach().to(self.device).split(ENCODE_AT_ONCE)
            ready = (block.contiguous(memory_format=torch.channels_last) for block in blocks)
            return torch.cat([self.front(block).cpu() for block in ready])

    def new_model(self, seed: int) -> TwoTower:
        """A fresh model: pretrained backbone (in `full`), heads from the seed."""
        model = build_model(self.towers, self.image_encoder, self.text_width, seed)
        return model.to(self.device)

    def behind(self, trunk: ImageEncoder) -> EncodedDataset:
        """The same dataset with the first layers of its image encoder in place of all of it."""
        other = copy.copy(self)
        for name in ("image_features", "backbone", "front"):  # what was cached is the whole encoder's
            vars(other).pop(name, None)
        other.image_encoder = trunk
        return other

    def under(self, image: str) -> EncodedDataset:
        """The same dataset through another image encoder."""
        return self.through(replace(self.towers, image=image))

    def through(self, towers: Towers) -> EncodedDataset:
        """The same dataset through other towers."""
        if towers == self.towers:
            return self
        return EncodedDataset(self.dataset, towers, self.cache, self.workers, self.device, self.passes)

    def others(self, images: Sequence[str]) -> dict[str, str]:
        """The fingerprints of other image encoders that are read with as well; each must be another one."""
        found = {name: load_image_encoder(name, self.towers.image_output).fingerprint for name in images}
        if len({self.image_encoder.fingerprint, *found.values()}) <= len(images):
            raise PairstillError(
                f"settings.extra_encoders must name other image encoders than {self.towers.image}, each once."
            )
        return found

    def identity(self) -> dict[str, Any]:
        """What a bank or a set must agree with: the towers, and the encoders' own fingerprints."""
        return {**self.towers.to_dict(), "encoders": self.encoders}


@dataclass(frozen=True)
class RowsOf:
    """Some rows of other inputs."""

    inputs: Inputs
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Tensor, random: torch.Generator | None = None) -> Tensor:
        """See `Inputs`."""
        return self.inputs.take(self.rows[rows], random)
