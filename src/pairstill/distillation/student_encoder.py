"""The image encoder of an inner loop's students, and the real pairs as features of it."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pairstill.data.pair_sampling import LinksByPicture
from pairstill.features.encoded_dataset import EncodedDataset, EncodedSplit
from pairstill.runtime.seeds import generator
from pairstill.towers.image_encoder import ImageEncoder
from pairstill.towers.trained_folding import trained_copy
from pairstill.towers.truncation import truncate
from pairstill.towers.two_tower import TwoTower, build_heads


class StudentEncoder:
    """One of the image encoders with which students train in the inner loop.

    Attributes:
        encoded: The dataset through all of it, or through its first layers where students train the others.
        real: The real pairs as its features.
    """

    def __init__(
        self, encoded: EncodedDataset, pairs: EncodedSplit, views: int, pixels_for: ImageEncoder, layers: int = 0
    ) -> None:
        """`pixels_for` is the encoder whose normalisation the synthetic pixels have.

        In `full` students train the last `layers` layers of the backbone, on features of those before them.
        """
        self._towers, self._width, self._tail = encoded.towers, encoded.image_encoder.width, None
        if layers and encoded.towers.train == "full":
            trunk, tail = truncate(encoded.image_encoder, encoded.towers.image_size, layers)
            self._tail = trained_copy(tail, torch.randn(2, trunk.width, generator=generator(0, "tail")))
            encoded = encoded.behind(trunk)
        self.encoded, self._pixels_for = encoded, pixels_for
        self.real = RealPairSampler(pairs, encoded, views)

    @property
    def fingerprint(self) -> str:
        """Of the encoder."""
        return self.encoded.image_encoder.fingerprint

    def features(self, pixels: Tensor) -> Tensor:
        """Pixels [N, 3, S, S], normalised for `pixels_for`, to features [N, d]."""
        own, other = self.encoded.image_encoder, self._pixels_for
        if (own.mean, own.std) != (other.mean, other.std):
            pixels = own.normalise(other.denormalise(pixels))
        return self.encoded.through_backbone(pixels)

    def fresh_student(self, width: int | None, seed: int) -> TwoTower:
        """All that a student trains: two projectors in `heads`; in `full` the texts', and the tail of the backbone.

        In `heads` they are as wide as those of evaluated students, unless a width is given.
        """
        encoded = self.encoded
        towers = replace(self._towers, embed_dim=width or self._towers.embed_dim)
        model = build_heads(towers, self._width, encoded.text_width, seed)
        if self._tail is not None:
            model.body = copy.deepcopy(self._tail)
        return model.to(encoded.device)


class RealPairSampler:
    """Real images as features, in several views, each with its captions."""

    def __init__(self, pairs: EncodedSplit, encoded: EncodedDataset, views: int = 0) -> None:
        self._pairs, self._encoded = pairs.pairs, encoded
        self._links = LinksByPicture(pairs.pairs.links)
        self._features = encoded.split_features(pairs)
        self._views = encoded.views(pairs, views) if views else np.empty((len(pairs.images), 0, 0), np.float32)

    def draw(self, size: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Features and text embeddings of `size` random images: any view of each, with one of its captions."""
        pictures, captions = self._links.draw(size, random).unbind(1)
        features = self._features[pictures]
        view = torch.randint(1 + self._views.shape[1], (len(features),), generator=random)
        other = view.nonzero()[:, 0]
        if len(other):
            features[other] = torch.from_numpy(self._views[pictures[other], view[other] - 1])
        return features.to(self._encoded.device), self._pairs.texts[captions].to(self._encoded.device)
