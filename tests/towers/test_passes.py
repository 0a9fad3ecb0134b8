import pytest
import torch

from pairstill.errors import PairstillError
from pairstill.towers import passes as blocks_module
from pairstill.towers.folding import fold
from pairstill.towers.image_encoder import load_image_encoder
from pairstill.towers.passes import Passes


def through(passes, network, pictures):
    x = pictures.clone().requires_grad_()
    y = passes(network, x)
    (y**2).sum().backward()
    return y.detach(), x.grad


@pytest.fixture(scope="module")
def network():
    return fold(load_image_encoder("test_efficientnet@random"), 32)


@pytest.fixture(scope="module")
def pictures():
    return torch.randn(7, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("micro_batch", [1, 2, 6])
def test_blocks_give_the_same_output_and_gradient(micro_batch, network, pictures):
    whole, parts = through(Passes(), network, pictures), through(Passes(micro_batch), network, pictures)
    torch.testing.assert_close(parts[0], whole[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(parts[1], whole[1], rtol=1e-3, atol=1e-5)


def test_large_batches_are_split_without_being_asked(network, pictures, monkeypatch):
    monkeypatch.setattr(blocks_module, "PIXELS_AT_ONCE", 3 * 32 * 32)
    assert seen_at_once(network, lambda: Passes()(network, pictures)) == [1, 3, 3]


def test_blocks_keep_the_activations_of_one(network, pictures):
    kept = [
        kept_numbers(lambda size=size: Passes(size)(network, pictures.clone().requires_grad_())) for size in (None, 1)
    ]
    assert kept[1] < kept[0] / 2  # one of seven blocks, and the weights


def test_the_backward_pass_begins_with_the_block_that_was_kept(network, pictures):
    seen = seen_at_once(network, lambda: through(Passes(3), network, pictures))
    assert seen == [1, 3, 3, 3, 1]


def test_without_gradients_nothing_is_computed_twice(network, pictures):
    with torch.no_grad():
        assert seen_at_once(network, lambda: Passes(4)(network, pictures)) == [3, 4]


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_mixed_precision_computes_in_16_bits_and_answers_in_32(micro_batch, network, pictures):
    exact, mixed = through(Passes(), network, pictures), through(Passes(micro_batch, "mixed"), network, pictures)
    for part, wanted in zip(mixed, exact, strict=True):
        assert part.dtype == torch.float32
        error = (part - wanted).norm() / wanted.norm()
        assert 1e-5 < error < 0.1  # 0 would say that it was computed in 32 bits


def test_a_micro_batch_of_nothing_is_refused():
    with pytest.raises(PairstillError, match="--micro-batch must be at least 1, not 0"):
        Passes(0)


def kept_numbers(compute):
    """How many numbers autograd keeps for the backward pass."""
    size = 0

    def pack(tensor):
        nonlocal size
        size += tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        compute()
    return size


def seen_at_once(network, compute):
    """How many images the network was given, each time."""
    seen = []
    handle = network.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    compute()
    handle.remove()
    return seen
