import pytest
import torch

from pairstill import api
from pairstill.features.subset_selection import choose_pairs


@pytest.mark.parametrize(("space", "kind"), [("joint", "kmeans"), ("image", "kmeans-image"), ("text", "kmeans-text")])
def test_pairs_are_those_nearest_to_the_centres_in_the_space_that_was_asked_for(space, kind, heads_data, tmp_path):
    made = api.distill(heads_data, tmp_path / "set", "kmeans", 9, settings={"space": space}, seed=2)
    encoded = heads_data.encoded()
    train = encoded.split("train")
    rows = choose_pairs(kind, encoded.pair_features(train), 9, seed=2)
    pictures, texts = train.pairs.links[rows].unbind(1)
    assert torch.equal(made.texts, train.pairs.texts[texts])
    assert torch.equal(made.images, encoded.pictures(train.images[pictures]))
