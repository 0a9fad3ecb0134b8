import numpy as np
import torch

from pairstill.distillation.student_encoder import RealPairSampler, StudentEncoder
from pairstill.runtime.row_matrix import in_memory
from pairstill.runtime.seeds import generator
from tests.support.students import OTHER


def test_an_outer_loss_takes_every_view_of_an_image_beside_a_caption_of_its_own(heads_data):
    encoded = heads_data.encoded()
    train = encoded.split("train")
    views = torch.from_numpy(np.array(encoded.views(train, 2)))
    known = torch.cat([encoded.image_features[train.images][:, None], views], dim=1)
    texts, links = in_memory(train.pairs.texts), {tuple(link) for link in train.pairs.links.tolist()}
    drawn = [RealPairSampler(train, encoded, 2).draw(20, generator(0, "draw", number)) for number in range(10)]
    seen = set()
    for features, words in drawn:
        for feature, word in zip(features, words, strict=True):
            picture, view = (known == feature).all(dim=2).nonzero()[0].tolist()
            captions = (texts == word).all(dim=1).nonzero()[:, 0].tolist()
            assert any((picture, caption) in links for caption in captions)
            seen.add(view)
    assert seen == {0, 1, 2}
    plain, _ = RealPairSampler(train, encoded).draw(20, generator(0))
    assert all((known[:, 0] == feature).all(dim=1).any() for feature in plain)


def test_in_full_towers_a_rehearsing_student_is_a_scored_one_whose_backbone_stays(full_data):
    encoded = full_data.encoded()
    encoder = StudentEncoder(encoded, encoded.split("train"), 0, encoded.image_encoder)
    inner, evaluated = encoder.fresh_student(None, 3), encoded.new_model(3)
    assert {name for name, _ in inner.named_parameters()} == set(evaluated.text_parameters())
    pictures, texts = torch.rand(2, 3, 32, 32), torch.rand(2, encoded.text_width)
    with torch.no_grad():
        expected = evaluated.eval()(pictures, texts)
        found = inner.eval()(encoder.features(pictures), texts)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_another_encoder_sees_the_picture_and_not_the_normalised_pixels(heads_data):
    own = heads_data.encoded()
    other = own.under(OTHER)
    other.image_encoder.mean, other.image_encoder.std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    encoder = StudentEncoder(other, other.split("train"), 0, own.image_encoder)
    pictures = torch.rand(3, 3, 32, 32)
    expected = other.through_backbone(other.image_encoder.normalise(pictures))
    torch.testing.assert_close(encoder.features(own.image_encoder.normalise(pictures)), expected)
