"""Ways to choose the first pairs: each returns which real pairs (rows of `links`) to start from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pairstill.errors import PairstillError, unknown
from pairstill.seeds import derive, generator

ROWS_AT_ONCE = 16384


@dataclass(frozen=True)
class PairFeatures:
    """Frozen encoders' features of the real pairs: images [I, d_i], texts [C, d_t], links [P, 2]."""

    images: Tensor
    texts: Tensor
    links: Tensor

    def image_rows(self) -> Tensor:
        """Normalised image features of every pair, [P, d_i]."""
        return F.normalize(self.images, dim=-1)[self.links[:, 0]]

    def text_rows(self) -> Tensor:
        """Normalised text features of every pair, [P, d_t]."""
        return F.normalize(self.texts, dim=-1)[self.links[:, 1]]

    def joint_rows(self) -> Tensor:
        """Both, side by side, [P, d_i + d_t]."""
        return torch.cat([self.image_rows(), self.text_rows()], dim=-1)


def random_pairs(features: PairFeatures, count: int, seed: int) -> Tensor:
    """Pairs of `count` different pictures, each with one of its captions, drawn at random."""
    order = torch.randperm(len(features.links), generator=generator(seed, "random pairs"))
    _, first = np.unique(features.links[order, 0].numpy(), return_index=True)
    return order[torch.from_numpy(np.sort(first))[:count]]


def kmeans_pairs(rows: Tensor, count: int, seed: int) -> Tensor:
    """Of each of `count` clusters of `rows` [P, d], the row nearest in cosine to the centroid (Eq. 4)."""
    centroids, members = kmeans(rows, count, seed)
    cosine = (F.normalize(rows, dim=-1) * F.normalize(centroids, dim=-1)[members]).sum(dim=-1)
    best_first = torch.argsort(cosine, descending=True, stable=True)
    by_cluster = best_first[torch.argsort(members[best_first], stable=True)]
    clusters = members[by_cluster]
    first = torch.ones(len(clusters), dtype=torch.bool)
    first[1:] = clusters[1:] != clusters[:-1]
    chosen = torch.full((count,), -1)
    chosen[clusters[first]] = by_cluster[first]
    return _fill_empty(chosen, rows)


def kmeans(rows: Tensor, count: int, seed: int, iterations: int = 25) -> tuple[Tensor, Tensor]:
    """Lloyd's k-means: centroids [count, d] and the cluster of each row [P]."""
    import faiss

    data = rows.contiguous().float().numpy()
    clusters = faiss.Kmeans(
        data.shape[1],
        count,
        niter=iterations,
        seed=derive(seed, "kmeans") % 2**31,
        min_points_per_centroid=1,
        max_points_per_centroid=len(data),
    )
    clusters.train(data)
    _, members = clusters.index.search(data, 1)
    return torch.from_numpy(np.array(clusters.centroids)), torch.from_numpy(members[:, 0].copy())


def _fill_empty(chosen: Tensor, rows: Tensor) -> Tensor:
    """A cluster that ended empty gets the first row that no other cluster chose."""
    taken = set(chosen[chosen >= 0].tolist())
    free = (row for row in range(len(rows)) if row not in taken)
    return torch.tensor([row if row >= 0 else next(free) for row in chosen.tolist()])


def herding(rows: Tensor, count: int, seed: int = 0) -> Tensor:
    """Greedy: each choice keeps the mean of the chosen rows nearest to the mean of all (Welling, 2009)."""
    mean = rows.mean(dim=0)
    norms = (rows**2).sum(dim=-1)
    total = torch.zeros_like(mean)
    free = torch.ones(len(rows), dtype=torch.bool)
    chosen = []
    for step in range(1, count + 1):
        # |total + x - step * mean|^2, but for what is the same for every x
        distances = norms + 2 * rows @ (total - step * mean)
        best = int(distances.masked_fill(~free, torch.inf).argmin())
        chosen.append(best)
        total, free[best] = total + rows[best], False
    return torch.tensor(chosen)


def k_center(rows: Tensor, count: int, seed: int) -> Tensor:
    """Farthest first: each choice is the row farthest from all chosen (Sener and Savarese, 2018)."""
    first = int(torch.randint(len(rows), (), generator=generator(seed, "k-center")))
    chosen = [first]
    nearest = torch.full((len(rows),), torch.inf, dtype=rows.dtype)
    while len(chosen) < count:
        nearest = torch.minimum(nearest, ((rows - rows[chosen[-1]]) ** 2).sum(dim=-1))
        nearest[chosen] = -1
        chosen.append(int(nearest.argmax()))
    return torch.tensor(chosen)


INITS: dict[str, Callable[[PairFeatures, int, int], Tensor]] = {
    "random": random_pairs,
    "kmeans": lambda features, count, seed: kmeans_pairs(features.joint_rows(), count, seed),
    "kmeans-image": lambda features, count, seed: kmeans_pairs(features.image_rows(), count, seed),
    "kmeans-text": lambda features, count, seed: kmeans_pairs(features.text_rows(), count, seed),
    "herding": lambda features, count, seed: herding(features.joint_rows(), count, seed),
    "k-center": lambda features, count, seed: k_center(features.joint_rows(), count, seed),
}
"""The ways that choose real pairs by the frozen encoders' features; methods/start.py has two more."""


def choose_pairs(kind: str, features: PairFeatures, count: int, seed: int) -> Tensor:
    """`count` rows of `features.links`, chosen in the way called `kind`."""
    if kind not in INITS:
        raise unknown("initialisation", kind, [*INITS, "kmeans-projected", "noise"])
    check_count(count, len(features.images))
    return INITS[kind](features, count, seed)


def cells_of(features: PairFeatures, rows: Tensor) -> Tensor:
    """For each of all pairs which of the chosen `rows` it is nearest to, in the cosine of joint features, [P]."""
    joint = features.joint_rows()
    centres = joint[rows]
    cells = torch.cat([(block @ centres.T).argmax(dim=1) for block in joint.split(ROWS_AT_ONCE)])
    cells[rows] = torch.arange(len(rows))  # with twins among the chosen, a cell would be empty
    return cells


def mean_texts(features: PairFeatures, rows: Tensor) -> Tensor:
    """For each of the chosen `rows` the mean text embedding of the pairs in its cell, [N, d_t]."""
    cells = cells_of(features, rows)
    sums = torch.zeros(len(rows), features.texts.shape[1]).index_add_(0, cells, features.texts[features.links[:, 1]])
    return sums / torch.bincount(cells, minlength=len(rows)).unsqueeze(1)


def check_count(count: int, available: int) -> None:
    """Refuse a number of pairs that is no number of pairs, or more than there are pictures."""
    if count < 1:
        raise PairstillError(f"--pairs must be at least 1, not {count}.")
    if count > available:
        raise PairstillError(f"--pairs {count} is more than the {available} training images. Ask for fewer pairs.")
