import numpy as np
import pytest
import torch

from pairstill.distillation.functional_student import FunctionalStudent, StudentData
from pairstill.distillation.student_encoder import RealPairSampler, StudentEncoder
from pairstill.distillation.unrolled_dual_form import backward_through_dual_form
from pairstill.distillation.unrolled_training import SgdSettings
from pairstill.runtime.row_matrix import in_memory
from pairstill.runtime.seeds import generator
from pairstill.training.losses import info_nce
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


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_in_full_a_student_of_the_inner_loop_is_an_evaluated_one_whose_first_layers_are_frozen(full_data, layers):
    encoded = full_data.encoded()
    encoder = StudentEncoder(encoded, encoded.split("train"), 0, encoded.image_encoder, layers)
    inner, evaluated = encoder.fresh_student(None, 3), encoded.new_model(3)
    trained, all_of_it = dict(inner.named_parameters()), dict(evaluated.named_parameters())
    assert set(evaluated.text_parameters()) <= trained.keys() <= all_of_it.keys()
    assert sum(value.dim() > 1 for value in inner.image_parameters().values()) >= layers
    pictures, texts = torch.rand(2, 3, 32, 32), torch.rand(2, encoded.text_width)
    with torch.no_grad():
        expected = evaluated.eval()(pictures, texts)
        found = inner.eval()(encoder.features(pictures), texts)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_the_inner_loop_in_full_trains_the_last_layers_as_sgd_does(full_data):
    encoded = full_data.encoded()
    encoder = StudentEncoder(encoded, encoded.split("train"), 0, encoded.image_encoder, 2)
    student, other = encoder.fresh_student(None, 3), encoder.fresh_student(None, 3)
    for module in (student, other):
        module.text_head.dropout.p = 0.0
    start = {name: value.detach() for name, value in student.named_parameters()}
    inputs = encoder.features(torch.rand(6, 3, 32, 32)).detach().requires_grad_()
    data = StudentData(inputs, torch.rand(6, encoded.text_width).requires_grad_(), torch.tensor(0.1), torch.tensor(0.1))
    reached = {}

    def outer_loss(parameters):
        reached.update(parameters)
        return torch.stack([value.square().sum() for value in parameters.values()]).sum()

    batches = [torch.arange(6)] * 3
    backward_through_dual_form(FunctionalStudent(student, 0), start, data, batches, SgdSettings(0.9, 1e-3), outer_loss)
    optimiser = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    for _ in batches:
        loss = info_nce(*other(inputs.detach(), data.texts.detach()))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for name, value in other.named_parameters():
        if name in reached:
            torch.testing.assert_close(reached[name].detach(), value.detach(), rtol=1e-3, atol=1e-5)
    assert any(name.startswith("body.") for name in reached)
    assert inputs.grad is not None and inputs.grad.abs().sum() > 0


def test_another_encoder_sees_the_picture_and_not_the_normalised_pixels(heads_data):
    own = heads_data.encoded()
    other = own.under(OTHER)
    other.image_encoder.mean, other.image_encoder.std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    encoder = StudentEncoder(other, other.split("train"), 0, own.image_encoder)
    pictures = torch.rand(3, 3, 32, 32)
    expected = other.through_backbone(other.image_encoder.normalise(pictures))
    torch.testing.assert_close(encoder.features(own.image_encoder.normalise(pictures)), expected)
