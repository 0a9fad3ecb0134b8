import copy

import pytest
import torch

from pairstill.towers import trained_folding
from pairstill.towers.folding import noise_for
from pairstill.towers.image_encoder import load_image_encoder
from pairstill.towers.trained_conv import TrainedConv
from pairstill.towers.trained_folding import plan_for_training, trained_copy
from pairstill.towers.truncation import truncate

FAMILIES = [
    "test_efficientnet@random",
    "nf_regnet_b0@random",
    "resnet18@random",
    "mobilenetv2_050@random",
    "test_vit@random",
]
SIZE = 64


def plain_copy(encoder):
    return copy.deepcopy(encoder).requires_grad_(True)


def gradients(network, pixels, twice):
    pixels = pixels.clone().requires_grad_()
    named = dict(network.named_parameters())
    output = network(pixels)
    found = torch.autograd.grad(output.square().mean(), list(named.values()), create_graph=True, allow_unused=True)
    used = {name: grad for name, grad in zip(named, found, strict=True) if grad is not None}
    if not twice:
        return output, torch.cat([grad.flatten() for grad in used.values()])
    pull = sum((grad * torch.cos(torch.arange(grad.numel())).view(grad.shape)).sum() for grad in used.values())
    return output, torch.autograd.grad(pull, pixels)[0]


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_copy_computes_the_same_with_parameters_of_the_same_names(name, twice):
    encoder = load_image_encoder(name).double()
    pixels = noise_for(encoder, SIZE if "vit" not in name else 160)
    made = trained_copy(encoder, pixels)
    plain = plain_copy(encoder)
    assert list(dict(made.named_parameters())) == list(dict(plain.named_parameters()))
    assert made.state_dict().keys() == plain.state_dict().keys()
    if twice and "vit" in name:
        pytest.skip("PyTorch's attention can't be differentiated twice")
    for expected, value in zip(gradients(plain, pixels, twice), gradients(made, pixels, twice), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-9)
    assert any(isinstance(layer, TrainedConv) for layer in made.modules()) == ("vit" not in name)


def test_copies_of_a_copy_are_apart_and_weights_from_outside_are_used():
    encoder = load_image_encoder("test_efficientnet@random")
    pixels = noise_for(encoder, SIZE)
    made = trained_copy(encoder, pixels)
    before, other = made(pixels), copy.deepcopy(made)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    assert torch.equal(made(pixels), before)
    from_outside = torch.func.functional_call(made, dict(other.named_parameters()), (pixels,))
    torch.testing.assert_close(from_outside, other(pixels))
    assert (from_outside - before).norm() > 0.1 * before.norm()
    made.load_state_dict(encoder.state_dict())


def test_the_tail_of_a_network_is_made_fast_too():
    encoder = load_image_encoder("test_efficientnet@random")
    trunk, tail = truncate(encoder, SIZE, 3)
    rows = trunk(noise_for(encoder, SIZE)).detach()
    made = trained_copy(tail, rows)
    assert sum(isinstance(layer, TrainedConv) for layer in made.modules()) >= 2
    torch.testing.assert_close(made(rows), encoder(noise_for(encoder, SIZE)), rtol=1e-4, atol=1e-4)


def test_a_fold_that_changes_something_is_left_out(monkeypatch):
    encoder = load_image_encoder("test_efficientnet@random")
    monkeypatch.setattr(trained_folding, "left_by", lambda norm: (torch.nn.Identity(), 0.1))
    with pytest.warns(UserWarning, match="cannot be folded as planned; a slower form is trained"):
        assert plan_for_training(encoder, noise_for(encoder, SIZE)) == {}
