import itertools

import pytest
import torch
import torch.nn.functional as F

from pairstill.errors import PairstillError
from pairstill.features.subset_selection import (
    SELECTIONS,
    PairFeatures,
    cells_of,
    choose_pairs,
    clusters_of,
    first_of_each_image,
    herding,
    k_center,
    kmeans,
    kmeans_pairs,
    mean_texts_of,
)
from pairstill.runtime import row_matrix
from pairstill.runtime.row_matrix import in_memory, sample
from tests.support.vectors import unit


def features(images=60, per_image=2, seed=0):
    random = torch.Generator().manual_seed(seed)
    captions = images * per_image
    links = torch.stack([torch.arange(images).repeat_interleave(per_image), torch.arange(captions)], 1)
    return PairFeatures(torch.randn(images, 8, generator=random), torch.randn(captions, 6, generator=random), links)


@pytest.mark.parametrize("kind", SELECTIONS)
def test_every_way_chooses_different_pairs_and_the_same_ones_again(kind):
    data = features()
    rows = choose_pairs(kind, data, 12, seed=3)
    assert rows.shape == (12,)
    assert len(set(rows.tolist())) == 12
    assert torch.equal(rows, choose_pairs(kind, data, 12, seed=3))


def test_random_pairs_have_different_pictures():
    data = features()
    assert len(set(data.links[choose_pairs("random", data, 60, 1), 0].tolist())) == 60


def test_herding_takes_the_nearest_not_the_farthest():
    rows = torch.randn(30, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    chosen = herding(rows, 5).tolist()
    mean = rows.mean(0)
    for step in range(1, 6):
        gaps = {}
        for candidate in set(range(30)) - set(chosen[: step - 1]):
            gaps[candidate] = (rows[[*chosen[: step - 1], candidate]].mean(0) - mean).norm().item()
        assert min(gaps, key=gaps.get) == chosen[step - 1]


def test_k_center_takes_the_farthest_first():
    rows = torch.randn(30, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    chosen = k_center(rows, 6, seed=0).tolist()
    for step in range(1, 6):
        distance = torch.cdist(rows, rows[chosen[:step]]).amin(dim=1)
        assert distance[chosen[step]] == distance.max()


def test_k_center_with_duplicates_still_gives_different_rows():
    rows = torch.ones(8, 3)
    assert len(set(k_center(rows, 8, seed=0).tolist())) == 8


def test_kmeans_takes_the_row_of_each_cluster_nearest_its_centroid():
    rows = torch.randn(80, 6, generator=torch.Generator().manual_seed(4)) + 1
    centroids = kmeans(rows, 5, seed=0)
    members = clusters_of(rows, centroids)
    distances = torch.cdist(rows, centroids)
    assert torch.equal(members, distances.argmin(dim=1))
    for cluster in range(5):
        torch.testing.assert_close(centroids[cluster], rows[members == cluster].mean(0), rtol=1e-4, atol=1e-4)
    for cluster, row in enumerate(kmeans_pairs(rows, 5, seed=0).tolist()):
        own = (members == cluster).nonzero()[:, 0]
        cosine = F.cosine_similarity(rows[own], centroids[cluster][None])
        assert own[cosine.argmax()].item() == row


def test_kmeans_with_as_many_clusters_as_rows_takes_all():
    rows = torch.randn(9, 3, generator=torch.Generator().manual_seed(5))
    assert sorted(kmeans_pairs(rows, 9, seed=0).tolist()) == list(range(9))


def test_kmeans_fills_clusters_that_stay_empty():
    rows = torch.ones(6, 3).repeat_interleave(1, 0)
    chosen = kmeans_pairs(rows, 4, seed=0)
    assert len(set(chosen.tolist())) == 4


def test_bad_counts_and_names():
    data = features(images=5)
    with pytest.raises(PairstillError, match="more than the 5 training images"):
        choose_pairs("random", data, 6, 0)
    with pytest.raises(PairstillError, match="at least 2"):
        choose_pairs("random", data, 1, 0)
    with pytest.raises(PairstillError, match="Did you mean 'kmeans'"):
        choose_pairs("kmeens", data, 2, 0)


def test_joint_features_are_both_modalities_normalised():
    data = features()
    rows = in_memory(data.joint_rows())
    for pair, (image, caption) in itertools.islice(enumerate(data.links.tolist()), 5):
        expected = torch.cat([F.normalize(data.images[image], dim=0), F.normalize(data.texts[caption], dim=0)])
        torch.testing.assert_close(rows[pair], expected)


def test_kmeans_repeats_to_the_bit_with_many_rows():
    """Above some thousand rows torch and FAISS work in parallel; the choice must not depend on who is first."""
    rows = torch.randn(50_000, 8, generator=torch.Generator().manual_seed(6))
    chosen = kmeans_pairs(rows, 20, seed=0)
    centroids = kmeans(rows, 20, seed=0)
    members = clusters_of(rows, centroids)
    cosine = F.cosine_similarity(rows, centroids[members])
    for cluster, row in enumerate(chosen.tolist()):
        assert members[row] == cluster
        assert cosine[row] == cosine[members == cluster].max()
    assert all(torch.equal(chosen, kmeans_pairs(rows, 20, seed=0)) for _ in range(5))


def test_cells_and_their_mean_texts_are_as_one_would_count_them():
    features = PairFeatures(unit(20, 3), unit(30, 4, seed=1), torch.stack([torch.arange(30) % 20, torch.arange(30)], 1))
    rows, joint = torch.tensor([4, 11, 25]), in_memory(features.joint_rows())
    members = [[], [], []]
    for number, row in enumerate(joint):
        cosines = [torch.cosine_similarity(row, joint[centre], dim=0).item() for centre in rows]
        members[cosines.index(max(cosines))].append(number)
    cells = cells_of(features, rows)
    assert [torch.nonzero(cells == k).flatten().tolist() for k in range(3)] == members
    for found, cell in zip(mean_texts_of(features, cells), members, strict=True):
        torch.testing.assert_close(found, sum(features.texts[n] for n in cell) / len(cell))


def test_twins_leave_no_cell_empty():
    twins = torch.ones(3, 2)
    features = PairFeatures(twins, twins, torch.stack([torch.arange(3), torch.arange(3)], 1))
    assert torch.isfinite(mean_texts_of(features, cells_of(features, torch.tensor([0, 2])))).all()


def test_of_equal_rows_the_first_stands_for_its_cluster_whatever_the_blocks(monkeypatch):
    corners = 10 * torch.eye(3).repeat(8, 1)
    for at_once in (24, 5):
        monkeypatch.setattr(row_matrix, "ROWS_AT_ONCE", at_once)
        features = PairFeatures(corners, corners, torch.arange(24).unsqueeze(1).repeat(1, 2))
        assert sorted(choose_pairs("kmeans", features, 3, seed=0).tolist()) == [0, 1, 2]


def test_kmeans_sees_a_sample_of_many_rows_only(monkeypatch):
    matrix = torch.randn(4000, 4, generator=torch.Generator().manual_seed(0))
    whole = kmeans(matrix, 5, seed=0)
    monkeypatch.setattr("pairstill.features.subset_selection.ROWS_PER_CLUSTER", 1)
    monkeypatch.setattr("pairstill.features.subset_selection.SAMPLED_ROWS", 4000)
    assert torch.equal(kmeans(matrix, 5, seed=0), whole)
    monkeypatch.setattr("pairstill.features.subset_selection.SAMPLED_ROWS", 3999)
    less = kmeans(matrix, 5, seed=0)
    assert not torch.equal(less, whole)
    assert torch.equal(kmeans(matrix, 5, seed=0), less)
    assert torch.equal(kmeans(sample(matrix, 3999, 0), 5, seed=0), less)


def test_only_the_first_pair_of_an_image_is_kept():
    links = torch.tensor([[0, 0], [0, 1], [1, 2], [1, 3], [2, 4]])
    order = torch.tensor([3, 1, 2, 0, 4])
    assert first_of_each_image(order, links).tolist() == [3, 1, 4]
