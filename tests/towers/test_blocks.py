import torch

from pairstill.towers import fold, in_blocks, load_image_encoder


def test_blocks_give_the_same_output_and_gradient():
    network = fold(load_image_encoder("test_efficientnet@random"), 32)
    pictures = torch.randn(7, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    found = []
    for at_once in (7 * 32 * 32, 2 * 32 * 32, 1):
        x = pictures.clone().requires_grad_()
        y = in_blocks(network, x, at_once)
        (y**2).sum().backward()
        found.append((y.detach(), x.grad))
    for y, gradient in found[1:]:
        torch.testing.assert_close(y, found[0][0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradient, found[0][1], rtol=1e-3, atol=1e-5)


def test_blocks_keep_no_activations():
    kept = []
    network = fold(load_image_encoder("test_efficientnet@random"), 32)
    pictures = torch.randn(8, 3, 32, 32).requires_grad_()
    for at_once in (8 * 32 * 32, 32 * 32):
        size = 0

        def pack(tensor):
            nonlocal size
            size += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            in_blocks(network, pictures, at_once)
        kept.append(size)
    assert kept[1] < kept[0] / 3


def test_without_gradients_nothing_is_computed_twice():
    network = fold(load_image_encoder("test_efficientnet@random"), 32)
    assert in_blocks(network, torch.randn(3, 3, 32, 32), 1).shape == (3, network.network.width)
