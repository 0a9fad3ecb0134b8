import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pairstill.features.subset_selection import PairFeatures, cells_of, choose_pairs, mean_texts_of
from pairstill.runtime import row_matrix
from pairstill.runtime.row_matrix import RowSubset, StoredMatrix, UnitRows, blocks, in_memory, sample


@pytest.fixture
def stored(tmp_path):
    """Features on disk, read-only, and the same in memory: 40 images, 90 captions, in a shuffled order."""
    random = np.random.default_rng(0)
    made = {}
    for name, shape in {"images": (50, 8), "texts": (100, 6)}.items():
        np.save(tmp_path / f"{name}.npy", random.standard_normal(shape, np.float32))
        made[name] = StoredMatrix(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    pictures, captions = torch.from_numpy(random.permutation(50)[:40]), torch.from_numpy(random.permutation(100)[:90])
    links = torch.stack([torch.arange(90) % 40, torch.arange(90)], dim=1)
    lazy = PairFeatures(RowSubset(made["images"], pictures), RowSubset(made["texts"], captions), links)
    plain = PairFeatures(
        torch.from_numpy(made["images"].matrix.copy())[pictures],
        torch.from_numpy(made["texts"].matrix.copy())[captions],
        links,
    )
    return lazy, plain


def test_rows_are_those_of_the_matrix_however_they_are_asked_for(stored):
    lazy, plain = stored
    some = torch.tensor([7, 3, 3, 39])
    assert torch.equal(lazy.images[some], plain.images[some])
    assert torch.equal(lazy.images[5:9], plain.images[5:9])
    assert torch.equal(in_memory(lazy.texts), plain.texts)
    assert tuple(lazy.texts.shape) == (len(lazy.texts), 6) == (90, 6)
    both = UnitRows((lazy.images, lazy.images))
    assert torch.equal(both[some], torch.cat([F.normalize(plain.images[some], dim=-1)] * 2, dim=1))
    assert tuple(both.shape) == (40, 16)


def test_what_is_read_may_be_changed_and_the_file_stays(stored):
    lazy, plain = stored
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of memory that may not be written to
        lazy.images[torch.arange(3)][:] = 0
        lazy.images.of[0:3][:] = 0
    assert torch.equal(in_memory(lazy.images), plain.images)


def test_blocks_cover_all_rows_in_order():
    matrix = torch.randn(23, 2)
    found = list(blocks(matrix, 5))
    assert [start for start, _ in found] == [0, 5, 10, 15, 20]
    assert torch.equal(torch.cat([block for _, block in found]), matrix)


def test_a_sample_is_all_rows_or_some_of_them_and_the_same_again():
    matrix = torch.arange(100.0).unsqueeze(1)
    assert torch.equal(sample(matrix, 100, 0), matrix)
    some = sample(matrix, 99, 0)[:, 0]
    assert torch.equal(some, sample(matrix, 99, 0)[:, 0])
    assert some.tolist() == sorted(set(some.tolist())) and len(some) == 99
    few = sample(matrix, 10, 0)
    assert not torch.equal(few, sample(matrix, 10, 1))


@pytest.mark.parametrize("kind", ["kmeans", "kmeans-image", "kmeans-text"])
def test_small_blocks_from_disk_choose_what_one_block_in_memory_does(stored, kind, monkeypatch):
    lazy, plain = stored
    expected = choose_pairs(kind, plain, 7, seed=1)
    cells = cells_of(plain, expected)
    means = mean_texts_of(plain, cells)
    monkeypatch.setattr(row_matrix, "ROWS_AT_ONCE", 13)
    assert torch.equal(choose_pairs(kind, lazy, 7, seed=1), expected)
    assert torch.equal(cells_of(lazy, expected), cells)
    torch.testing.assert_close(mean_texts_of(lazy, cells), means)
