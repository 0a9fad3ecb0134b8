import numpy as np
import pytest
import torch

from pairstill.errors import PairstillError
from pairstill.sets.exports import shards
from tests.sets.exports.conftest import parts


def test_pairs_are_cut_into_shards_and_read_back_in_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "PAIRS_IN_A_SHARD", 2)
    made = parts(5, soft=True)
    shards.write(made, tmp_path)
    names = [path.name for path in sorted(tmp_path.glob("*.tar"))]
    assert names == ["pairs-000000.tar", "pairs-000001.tar", "pairs-000002.tar"]
    back = shards.read(tmp_path)
    assert np.array_equal(back.pictures, made.pictures)
    assert torch.equal(back.texts, made.texts) and torch.equal(back.similarity, made.similarity)
    assert back.captions == made.captions


def test_a_folder_without_shards_is_said(tmp_path):
    with pytest.raises(PairstillError, match="holds 0 images and 0 descriptions of pairs"):
        shards.read(tmp_path)
