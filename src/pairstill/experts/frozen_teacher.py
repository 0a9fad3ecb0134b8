"""The teacher's module: built once, its weights swapped at every iteration, frozen and folded."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from pairstill.features.encoded_dataset import EncodedDataset
from pairstill.runtime.process_group import data_parallel
from pairstill.towers.folding import FoldedNetwork, fold


class Teacher:
    """A frozen two-tower model that only encodes: inputs and texts in, unit vectors out."""

    def __init__(self, encoded: EncodedDataset) -> None:
        self.device, self._passes = torch.device(encoded.device), encoded.passes
        self._model = encoded.new_model(seed=0).cpu().eval().requires_grad_(False)
        self._body: FoldedNetwork | None = None
        if encoded.towers.train == "full":
            # Folded where float32 is exact: a GPU's TF32 could fail the check that the fold is faithful.
            self._body = fold(copy.deepcopy(encoded.image_encoder).cpu(), encoded.towers.image_size).to(self.device)
            self._model.body = nn.Identity()
        self._model.to(self.device)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take over the weights of a whole two-tower model, by the names of its parameters.

        They are kept without a copy: they must not be changed in place afterwards.
        """
        for name, parameter in self._model.named_parameters():
            parameter.data = weights[name].to(self.device)
        if self._body is not None:
            self._body.load({name.removeprefix("body."): w for name, w in weights.items() if name.startswith("body.")})

    def __call__(self, inputs: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
        """Unit vectors of image inputs [N, ...] and of text embeddings [N, d_t]."""
        features = inputs if self._body is None else data_parallel(partial(self._passes, self._body), inputs)
        return self._model.encode_image(features), self._model.encode_text(texts)
