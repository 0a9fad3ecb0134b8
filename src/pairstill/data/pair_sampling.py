"""Drawing some images, each with one of its captions, out of very many."""

from __future__ import annotations

import torch
from torch import Tensor


class LinksByPicture:
    """Links [P, 2] (image, caption), grouped by image once, so that a draw need not sort them all."""

    def __init__(self, links: Tensor) -> None:
        self._links = links
        self._grouped = torch.argsort(links[:, 0], stable=True)
        self._counts = torch.unique_consecutive(links[self._grouped, 0], return_counts=True)[1]
        self._starts = self._counts.cumsum(0) - self._counts

    def draw(self, size: int, random: torch.Generator) -> Tensor:
        """`size` different images, each with one of its captions, all at random: links [size, 2].

        All links are shuffled, and an image takes the first of its own: the same draw as `one_link_per_image`
        and then some of its rows, from the same random numbers.
        """
        shuffled = torch.randperm(len(self._links), generator=random)
        place = torch.empty_like(shuffled).scatter_(0, shuffled, torch.arange(len(shuffled)))
        pictures = torch.randperm(len(self._counts), generator=random)[:size]
        own, picture = self._links_of(pictures)
        first = torch.full((len(pictures),), len(shuffled)).scatter_reduce(0, picture, place[own], "amin")
        return self._links[shuffled[first]]

    def _links_of(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """All links of some images, as rows, and for each which of the images it is of."""
        counts = self._counts[pictures]
        picture = torch.arange(len(pictures)).repeat_interleave(counts)
        number = torch.arange(len(picture)) - (counts.cumsum(0) - counts)[picture]
        return self._grouped[self._starts[pictures][picture] + number], picture
