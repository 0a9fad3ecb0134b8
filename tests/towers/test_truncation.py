import pytest
import torch

from pairstill.errors import PairstillError
from pairstill.towers.folding import fold
from pairstill.towers.image_encoder import load_image_encoder
from pairstill.towers.truncation import truncate

SIZE = 64
FAMILIES = ["test_efficientnet@random", "nf_regnet_b0@random", "resnet18@random", "mobilenetv2_050@random"]


def images(count=3):
    return torch.randn(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("layers", [1, 3])
def test_trunk_and_tail_are_the_encoder(name, layers):
    encoder = load_image_encoder(name)
    trunk, tail = truncate(encoder, SIZE, layers)
    with torch.no_grad():
        rows = trunk(images())
        assert rows.shape == (3, trunk.width)
        torch.testing.assert_close(tail(rows), encoder(images()))
        torch.testing.assert_close(tail(fold(trunk, SIZE)(images())), encoder(images()), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_tail_has_the_last_layers_under_their_own_names(name):
    encoder = load_image_encoder(name)
    whole = dict(encoder.named_parameters())
    trunk, tail = truncate(encoder, SIZE, 2)
    first, last = dict(trunk.named_parameters()), dict(tail.named_parameters())
    assert first.keys() | last.keys() == whole.keys() and not first.keys() & last.keys()
    assert all(torch.equal(value, whole[name]) for name, value in last.items())
    assert sum(value.dim() > 1 for value in last.values()) >= 2
    names = list(whole)
    assert names[-1] in last and names[0] in first


def test_a_deeper_cut_leaves_more_to_the_tail():
    encoder = load_image_encoder(FAMILIES[0])
    sizes = [sum(p.numel() for p in truncate(encoder, SIZE, layers)[1].parameters()) for layers in (1, 2, 8)]
    assert sizes == sorted(sizes) and len(set(sizes)) == 3


def test_norm_statistics_of_the_tail_never_change():
    _, tail = truncate(load_image_encoder(FAMILIES[0]), SIZE, 2)
    before = {name: value.clone() for name, value in tail.named_buffers()}
    tail.train()(torch.randn(4, *tail.shape).flatten(1))
    assert before and all(torch.equal(value, before[name]) for name, value in tail.named_buffers())


def test_trunks_have_fingerprints_of_their_own():
    encoder = load_image_encoder(FAMILIES[0])
    keys = {encoder.fingerprint, *(truncate(encoder, SIZE, layers)[0].fingerprint for layers in (1, 2, 8))}
    assert len(keys) == 4


def test_more_layers_than_there_are_is_said():
    with pytest.raises(PairstillError, match="can't be cut before its last 1000 layers"):
        truncate(load_image_encoder(FAMILIES[0]), SIZE, 1000)
