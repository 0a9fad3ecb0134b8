import numpy as np
import pytest
import torch

from pairstill.data.decoding import decode
from pairstill.distillation.coreset import coreset
from pairstill.methods import METHODS
from tests.support.coresets import rows_chosen

NAMES = [name for name, method in METHODS.items() if "coreset" in method.fit.__globals__]


@pytest.mark.parametrize("method", NAMES)
def test_no_image_is_chosen_twice_even_when_all_are(method, context, monkeypatch):
    context = context(method, count=96)
    pairs = context.encoded.split("train")
    chosen = rows_chosen(pairs, context, method, monkeypatch)
    assert sorted(pairs.pairs.links[chosen, 0].tolist()) == list(range(96))


def test_a_coreset_is_the_very_pictures_and_texts_of_its_rows(context):
    context = context("herding")
    pairs, dataset = context.encoded.split("train"), context.encoded.dataset
    rows = torch.tensor([70, 2, 30])
    made = coreset(pairs, context, rows)
    pixels = (made.pictures() * 255).round().permute(0, 2, 3, 1).byte().numpy()
    for number, (picture, text) in enumerate(pairs.pairs.links[rows].tolist()):
        drawn = decode(dataset.images.read(pairs.images[picture].item()), "x")
        assert np.array_equal(pixels[number], np.asarray(drawn))
        assert torch.equal(made.texts[number], pairs.pairs.texts[torch.tensor([text])][0])
        assert made.captions[number][0] == pairs.captions[text]
