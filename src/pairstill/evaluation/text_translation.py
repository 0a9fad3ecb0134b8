"""Texts of one encoder as another would give them: the linear map that best takes real captions from one to the other.

    t' = (t - mean X) W + mean Y        W = (X'X + ridge I)^-1 X'Y        X, Y centred

X [n, d] and Y [n, e] being the same real captions through both encoders. A distilled text is no caption, and says more
than the caption nearest to it: a map of the whole space takes along what that caption leaves behind.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pairstill.errors import PairstillError
from pairstill.evaluation.scoring import with_texts
from pairstill.features.encoded_dataset import EncodedDataset
from pairstill.runtime.row_matrix import sample
from pairstill.sets.distilled_set import DistilledSet

CAPTIONS = 8192
"""Captions of the training split that the map is fitted on, at most."""

RIDGE = 0.01
"""A share of the mean of X'X's diagonal."""


def translate(texts: Tensor, ours: Tensor, theirs: Tensor) -> Tensor:
    """Texts [N, d] of our encoder in the space of theirs [N, e], by captions that both read: [n, d] and [n, e]."""
    x, y = ours.double(), theirs.double()
    x_mean, y_mean = x.mean(0), y.mean(0)
    x, y = x - x_mean, y - y_mean
    gram = x.T @ x
    ridge = RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    weight: Tensor = torch.linalg.solve(gram + ridge, x.T @ y)
    return ((texts.double() - x_mean) @ weight + y_mean).to(texts.dtype)


def with_translated_texts(encoded: EncodedDataset, source: EncodedDataset, distilled: DistilledSet) -> DistilledSet:
    """The set with its texts as the text encoder of `encoded` would give them; it was made with that of `source`."""
    made_with = distilled.info.get("towers", {}).get("encoders", {}).get("text", source.encoders["text"])
    if made_with != source.encoders["text"]:
        raise PairstillError(
            f"the set's texts are of other weights than those of {source.towers.text} here, and can't be translated. "
            "Students can read its nearest captions: --texts nearest."
        )
    if source.encoders["text"] == encoded.encoders["text"]:
        return distilled
    ours, theirs = (sample(side.split("train").pairs.texts, CAPTIONS, seed=0) for side in (source, encoded))
    return with_texts(encoded, distilled, translate(distilled.texts, ours, theirs))
