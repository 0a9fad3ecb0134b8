"""Forgetting: the real pairs that training learns and loses again most often (Toneva et al., 2019).

After each epoch a pair is right if image and caption find each other first. A pair that was right and is wrong an
epoch later was forgotten once. Pairs are taken by how often they were forgotten, most often first; those that were
never right come last, because nothing says that they can be learnt.

To be first among all training pairs is too much to ask of a model that is still learning, and costs the square of
their number. Published code asks within the training batch; here it is within groups of that size. A pair keeps its
group through all epochs: with a new one each time, a harder group would pass for forgetting.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pairstill.distillation.contract import Context, Method
from pairstill.distillation.coreset import coreset
from pairstill.distillation.setting_checks import check_settings
from pairstill.distillation.warm_up import warm_up
from pairstill.features.encoded_dataset import EncodedSplit
from pairstill.features.subset_selection import first_of_each_image
from pairstill.runtime.seeds import generator
from pairstill.sets.distilled_set import DistilledSet
from pairstill.towers.two_tower import TwoTower
from pairstill.training.student_training import embed


@dataclass(frozen=True)
class Settings:
    """Settings of forgetting.

    Args:
        epochs: Epochs of training in which forgetting is counted.
        group: Pairs among which image and caption have to find each other.
    """

    epochs: int = 10
    group: int = 128

    def __post_init__(self) -> None:
        check_settings(self, {"epochs": 2, "group": 2})


def fit(pairs: EncodedSplit, context: Context) -> DistilledSet:
    """Pairs of different images, the most often forgotten first."""
    settings: Settings = context.settings
    links = pairs.pairs.links
    groups = deal_groups(links, settings.group, generator(context.seed, "forgetting", "groups"))
    history: list[Tensor] = []

    def after_epoch(model: TwoTower) -> str:
        history.append(right_pairs(*embed(model, pairs.pairs.inputs, pairs.pairs.texts), links, groups))
        return f"{100 * history[-1].float().mean().item():.0f}% right"

    warm_up(pairs, context, settings.epochs, after_epoch)
    order = forgetting_order(torch.stack(history), generator(context.seed, "forgetting", "ties"))
    return coreset(pairs, context, first_of_each_image(order, links)[: context.count])


def deal_groups(links: Tensor, size: int, random: torch.Generator) -> list[Tensor]:
    """Pairs [P, 2] in random groups of different images, of at most `size` and all of one size but for one pair.

    The images are shuffled, and their pairs dealt out like cards: with at least as many groups as an image has
    captions, no group gets two pairs of one image.
    """
    pictures = int(links[:, 0].max()) + 1
    place = torch.randperm(pictures, generator=random)
    shuffled = torch.randperm(len(links), generator=random)
    order = shuffled[torch.argsort(place[links[shuffled, 0]], stable=True)]
    count = max(-(-len(links) // size), int(torch.bincount(links[:, 0]).max()))
    return [order[first::count] for first in range(count)]


def right_pairs(images: Tensor, texts: Tensor, links: Tensor, groups: list[Tensor]) -> Tensor:
    """Which pairs [P] are right, each within its group. images: [I, d], texts: [C, d], links: [P, 2]."""
    right = torch.zeros(len(links), dtype=torch.bool)
    known = torch.sort(links[:, 0] * len(texts) + links[:, 1]).values
    for rows in groups:
        image_rows, text_rows = links[rows].unbind(1)
        asked = image_rows[:, None] * len(texts) + text_rows
        linked = known[torch.searchsorted(known, asked).clamp(max=len(known) - 1)] == asked
        right[rows] = find_each_other(images[image_rows], texts[text_rows], linked)
    return right


def find_each_other(images: Tensor, texts: Tensor, linked: Tensor) -> Tensor:
    """Whether row j of `images` [n, d] finds row j of `texts` [n, d] first, and the other way round too.

    Other captions and images that belong to it (`linked` [n, n]) don't count as ahead; a tie with a wrong one does.
    """
    scores = images @ texts.T
    own, wrong = scores.diagonal(), scores.masked_fill(linked, -torch.inf)
    return (own > wrong.amax(dim=1)) & (own > wrong.amax(dim=0))


def forgetting_events(right: Tensor) -> Tensor:
    """How often each pair was right and then wrong an epoch later. right: [epochs, P] booleans; returns [P]."""
    return (right[:-1] & ~right[1:]).sum(dim=0)


def never_learnt(right: Tensor) -> Tensor:
    """Which pairs were right after no epoch. right: [epochs, P] booleans; returns [P]."""
    return ~right.any(dim=0)


def forgetting_order(right: Tensor, random: torch.Generator) -> Tensor:
    """All pairs [P]: the most often forgotten first, the never learnt last, ties at random."""
    score = forgetting_events(right).masked_fill(never_learnt(right), -1)
    shuffled = torch.randperm(len(score), generator=random)
    return shuffled[torch.argsort(score[shuffled], descending=True, stable=True)]


METHOD = Method("forgetting", "real pairs that training forgets most often", Settings, fit)
