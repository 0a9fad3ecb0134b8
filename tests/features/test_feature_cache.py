import numpy as np
import pytest
import torch

from pairstill import api
from pairstill.data.augmentation import crop_and_flip, warp
from pairstill.features import feature_cache
from pairstill.features.feature_cache import cached_matrix
from pairstill.runtime.row_matrix import in_memory
from pairstill.runtime.seeds import generator
from tests.conftest import TINY_HEADS


def test_the_first_view_is_the_mirrored_picture_and_the_next_a_crop(heads_data):
    encoded = heads_data.encoded()
    train = encoded.split("train")
    pixels = encoded.pictures(train.images)
    views = torch.from_numpy(np.array(encoded.views(train, 2)))
    with torch.no_grad():
        mirrored = encoded.through_backbone(pixels.flip(-1))
        crops = encoded.through_backbone(warp(pixels, crop_and_flip(len(pixels), generator(0, "view", 1))))
    torch.testing.assert_close(views[:, 0], mirrored, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(views[:, 1], crops, rtol=1e-3, atol=1e-3)


def test_nothing_is_computed_twice(own_shapes, tmp_path, monkeypatch):
    first = api.prepare(str(own_shapes), tmp_path / "data", TINY_HEADS).encoded().image_features

    def never(*_args, **_kwargs):
        raise AssertionError("computed again")

    monkeypatch.setattr(feature_cache, "load_pixels", never)
    again = api.prepare(str(own_shapes), tmp_path / "data", TINY_HEADS).encoded().image_features
    assert np.array_equal(in_memory(first), in_memory(again))


def test_a_matrix_goes_on_where_it_was_killed(tmp_path):
    starts = []

    def compute(start):
        starts.append(start)
        for row in range(start, 10, 2):
            if row == 6 and len(starts) == 1:
                raise KeyboardInterrupt
            yield np.full((2, 3), row, dtype=np.float32)

    path = tmp_path / "m.npy"
    with pytest.raises(KeyboardInterrupt):
        cached_matrix(path, (10, 3), "float32", compute, "test")
    assert not path.exists()
    matrix = cached_matrix(path, (10, 3), "float32", compute, "test")
    assert starts == [0, 6]
    assert matrix[:, 0].tolist() == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8]
    cached_matrix(path, (10, 3), "float32", compute, "test")
    assert starts == [0, 6]


def test_a_stale_note_is_not_believed(tmp_path):
    def compute(start):
        yield np.arange(start, 6, dtype=np.float32)[:, None]

    def stopped(start):
        raise KeyboardInterrupt
        yield

    path = tmp_path / "m.npy"
    cached_matrix(path, (6, 1), "float32", compute, "test")
    path.with_suffix(".json").unlink()  # killed after the rename, before the record
    path.with_suffix(".partial.json").write_text('{"rows": 6}')
    with pytest.raises(KeyboardInterrupt):
        cached_matrix(path, (6, 1), "float32", stopped, "test")
    assert cached_matrix(path, (6, 1), "float32", compute, "test")[:, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_damaged_matrix_is_computed_again(tmp_path):
    def compute(start):
        yield np.arange(start, 6, dtype=np.float32)[:, None]

    path = tmp_path / "m.npy"
    cached_matrix(path, (6, 1), "float32", compute, "test")
    data = bytearray(path.read_bytes())
    data[-1] ^= 0xFF
    path.write_bytes(data)
    assert cached_matrix(path, (6, 1), "float32", compute, "test")[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
