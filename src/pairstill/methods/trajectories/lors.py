"""LoRS (Xu et al., 2024): TESLA that also learns how similar each image is to each text, at low rank.

    S = diag(a) + (alpha / r) L R'    a = 1, L ~ N(0, 1), R = 0 at first

Students train with the weighted BCE against S.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pairstill.distillation.contract import Context, Method
from pairstill.distillation.setting_checks import check_settings
from pairstill.distillation.trajectory_matching import TrajectoryMatchingSettings, match_trajectories
from pairstill.features.encoded_dataset import EncodedSplit
from pairstill.runtime.seeds import generator
from pairstill.sets.distilled_set import DistilledSet


@dataclass(frozen=True)
class Settings(TrajectoryMatchingSettings):  # noqa: D101
    __doc__ = f"""{(TrajectoryMatchingSettings.__doc__ or "").rstrip()}
        rank: Rank r of the learnt similarity; 0 learns the diagonal only.
        alpha: Weight of the low-rank part.
        similarity_lr: Step size for the similarity.
    """

    rank: int = 10
    alpha: float = 3.0
    similarity_lr: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, {"rank": 0, "similarity_lr": 0})


def similarity(learnt: Mapping[str, Tensor], alpha: float) -> Tensor:
    """S [N, N] from diagonal [N] and, if the rank is not 0, left [N, r] and right [N, r]."""
    diagonal = torch.diag(learnt["diagonal"])
    if "left" not in learnt:
        return diagonal
    return diagonal + alpha / learnt["left"].shape[1] * learnt["left"] @ learnt["right"].T


def fit(pairs: EncodedSplit, context: Context) -> DistilledSet:
    """Pixels, texts, similarity and the student's step sizes are learnt together."""
    settings: Settings = context.settings
    start = {"diagonal": torch.ones(context.count)}
    if settings.rank:
        shape = (context.count, settings.rank)
        start["left"] = torch.randn(shape, generator=generator(context.seed, "lors", "left"))
        start["right"] = torch.zeros(shape)
    learnable = {name: (value, settings.similarity_lr) for name, value in start.items()}
    return match_trajectories(pairs, context, False, lambda learnt: similarity(learnt, settings.alpha), learnable)


METHOD = Method("lors", "TESLA with a learnt low-rank similarity (LoRS)", Settings, fit, needs_bank=True)
