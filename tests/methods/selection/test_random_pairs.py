import torch

from pairstill import api
from pairstill.features.subset_selection import choose_pairs


def test_pairs_are_real_ones_of_different_pictures_drawn_by_the_seed(heads_data, tmp_path):
    made, again, other = (api.distill(heads_data, tmp_path / str(n), "random", 9, seed=n // 2) for n in range(3))
    assert torch.equal(made.images, again.images) and torch.equal(made.texts, again.texts)
    assert not torch.equal(made.texts, other.texts)
    encoded = heads_data.encoded()
    train = encoded.split("train")
    found = (made.images[:, None] == encoded.pictures(train.images)).flatten(2).all(dim=2)
    pictures = found.nonzero()[:, 1].tolist()
    assert len(pictures) == len(set(pictures)) == 9
    rows = choose_pairs("random", encoded.pair_features(train), 9, seed=0)
    assert pictures == train.pairs.links[rows, 0].tolist()
    linked = {(picture, train.captions[text]) for picture, text in train.pairs.links.tolist()}
    assert {(picture, near[0]) for picture, near in zip(pictures, made.captions, strict=True)} <= linked
