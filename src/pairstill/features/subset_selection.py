"""Ways to choose some of the real pairs by their features: each returns rows of `links`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pairstill.errors import PairstillError, unknown
from pairstill.runtime.row_matrix import SAMPLED_ROWS, RowMatrix, RowSubset, UnitRows, blocks, in_memory, sample
from pairstill.runtime.seeds import derive, generator

ROWS_PER_CLUSTER = 256
"""K-means looks at no more rows than so many a cluster (or `SAMPLED_ROWS`): more would hardly move a centroid."""


@dataclass(frozen=True)
class PairFeatures:
    """Frozen encoders' features of the real pairs: images [I, d_i], texts [C, d_t], links [P, 2]."""

    images: RowMatrix
    texts: RowMatrix
    links: Tensor

    def image_rows(self) -> RowMatrix:
        """Normalised image features of every pair, [P, d_i]."""
        return UnitRows((RowSubset(self.images, self.links[:, 0]),))

    def text_rows(self) -> RowMatrix:
        """Normalised text features of every pair, [P, d_t]."""
        return UnitRows((RowSubset(self.texts, self.links[:, 1]),))

    def joint_rows(self) -> RowMatrix:
        """Both, side by side, [P, d_i + d_t]."""
        return UnitRows((RowSubset(self.images, self.links[:, 0]), RowSubset(self.texts, self.links[:, 1])))


def random_pairs(features: PairFeatures, count: int, seed: int) -> Tensor:
    """Pairs of `count` different images, each with one of its captions, drawn at random."""
    order = torch.randperm(len(features.links), generator=generator(seed, "random pairs"))
    return first_of_each_image(order, features.links)[:count]


def first_of_each_image(order: Tensor, links: Tensor) -> Tensor:
    """`order`, rows of `links` [P, 2], without the pairs whose image was there before."""
    _, first = np.unique(links[order, 0].numpy(), return_index=True)
    return order[torch.from_numpy(np.sort(first))]


def kmeans_pairs(rows: RowMatrix, count: int, seed: int) -> Tensor:
    """Of each of `count` clusters of `rows` [P, d], the row nearest in cosine to the centroid (Eq. 4)."""
    centroids = kmeans(rows, count, seed)
    directions = F.normalize(centroids, dim=-1)
    best, chosen = torch.full((count,), -torch.inf), torch.full((count,), len(rows))
    for start, block in blocks(rows):
        members = clusters_of(block, centroids)
        cosine = (F.normalize(block, dim=-1) * directions[members]).sum(dim=-1)
        before, best = best, best.scatter_reduce(0, members, cosine, "amax")
        chosen[best > before] = len(rows)
        top = (cosine == best[members]).nonzero()[:, 0]
        chosen = chosen.scatter_reduce(0, members[top], start + top, "amin")  # of equals the first
    return _fill_empty(chosen, len(rows))


def kmeans(rows: RowMatrix, count: int, seed: int, iterations: int = 25) -> Tensor:
    """Centroids [count, d] of Lloyd's k-means; of many rows it sees a sample."""
    import faiss

    data = sample(rows, max(SAMPLED_ROWS, ROWS_PER_CLUSTER * count), seed).numpy()
    clusters = faiss.Kmeans(
        data.shape[1],
        count,
        niter=iterations,
        seed=derive(seed, "kmeans") % 2**31,
        min_points_per_centroid=1,
        max_points_per_centroid=len(data),
    )
    clusters.train(data)
    return torch.from_numpy(np.array(clusters.centroids))


def clusters_of(rows: Tensor, centroids: Tensor) -> Tensor:
    """The nearest centroid [n] of each row."""
    import faiss

    _, nearest = faiss.knn(rows.contiguous().numpy(), centroids.numpy(), 1)
    return torch.from_numpy(nearest[:, 0].copy())


def _fill_empty(chosen: Tensor, available: int) -> Tensor:
    """A cluster that ended empty gets the first row that no other cluster chose."""
    taken = set(chosen.tolist())
    free = (row for row in range(available) if row not in taken)
    return torch.tensor([row if row < available else next(free) for row in chosen.tolist()])


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


SELECTIONS: dict[str, Callable[[PairFeatures, int, int], Tensor]] = {
    "random": random_pairs,
    "kmeans": lambda features, count, seed: kmeans_pairs(features.joint_rows(), count, seed),
    "kmeans-image": lambda features, count, seed: kmeans_pairs(features.image_rows(), count, seed),
    "kmeans-text": lambda features, count, seed: kmeans_pairs(features.text_rows(), count, seed),
    "herding": lambda features, count, seed: herding(in_memory(features.joint_rows()), count, seed),
    "k-center": lambda features, count, seed: k_center(in_memory(features.joint_rows()), count, seed),
}
"""The ways that choose real pairs by the frozen encoders' features; `distillation.initial_pairs` has two more."""


def choose_pairs(kind: str, features: PairFeatures, count: int, seed: int) -> Tensor:
    """`count` rows of `features.links`, chosen in the way called `kind`."""
    if kind not in SELECTIONS:
        raise unknown("initialisation", kind, [*SELECTIONS, "kmeans-projected", "noise"])
    check_count(count, len(features.images))
    return SELECTIONS[kind](features, count, seed)


def cells_of(features: PairFeatures, rows: Tensor) -> Tensor:
    """For each of all pairs which of the chosen `rows` it is nearest to, in the cosine of joint features, [P]."""
    joint = features.joint_rows()
    centres = joint[rows]
    cells = torch.empty(len(joint), dtype=torch.int64)
    for start, block in blocks(joint):
        cells[start : start + len(block)] = (block @ centres.T).argmax(dim=1)
    cells[rows] = torch.arange(len(rows))  # with twins among the chosen, a cell would be empty
    return cells


def mean_texts_of(features: PairFeatures, cells: Tensor) -> Tensor:
    """For each cell the mean text embedding of its pairs, [N, d_t]; `cells` is what `cells_of` gave, none is empty."""
    members = torch.bincount(cells).unsqueeze(1)
    sums = torch.zeros(len(members), features.texts.shape[1])
    texts = RowSubset(features.texts, features.links[:, 1])
    for start, block in blocks(texts):
        sums.index_add_(0, cells[start : start + len(block)], block)
    return sums / members


def check_count(count: int, available: int) -> None:
    """Refuse a number of pairs that is no number of pairs, or more than there are images."""
    if count < 2:
        raise PairstillError(f"--pairs must be at least 2, not {count}: students learn to tell pairs apart.")
    if count > available:
        raise PairstillError(f"--pairs {count} is more than the {available} training images. Ask for fewer pairs.")
