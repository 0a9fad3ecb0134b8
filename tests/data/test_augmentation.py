import pytest
import torch

from pairstill.data.augmentation import OPERATIONS, dsa, expert_augmentation, randaugment_operation


def pictures(count=12, size=16):
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def test_experts_pictures_stay_pictures_and_change():
    images = pictures()
    result = expert_augmentation(images, torch.Generator().manual_seed(1))
    assert result.shape == images.shape
    assert result.min() >= 0
    assert result.max() <= 1 + 1e-5
    assert not torch.allclose(result, images)
    assert torch.equal(result, expert_augmentation(images, torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_keep_shape_and_range(name):
    images = pictures()
    result = OPERATIONS[name](images, torch.full((12,), 0.5))
    assert result.shape == images.shape
    assert result.min() >= 0
    assert result.max() <= 1 + 1e-6
    assert torch.equal(result, images) == (name == "identity")


def test_autocontrast_and_equalize_use_the_whole_range():
    images = 0.4 + 0.2 * pictures()
    for name in ("autocontrast", "equalize"):
        result = OPERATIONS[name](images, torch.zeros(12))
        torch.testing.assert_close(result.amax(dim=(2, 3)), torch.ones(12, 3))
        torch.testing.assert_close(result.amin(dim=(2, 3)), torch.zeros(12, 3))


def test_flat_pictures_survive():
    flat = torch.full((2, 3, 8, 8), 0.5)
    for name in OPERATIONS:
        assert torch.isfinite(OPERATIONS[name](flat, torch.full((2,), 0.5))).all()


def test_translation_moves_by_the_fraction_of_the_side():
    image = torch.zeros(1, 3, 20, 20)
    image[..., 10] = 1
    moved = OPERATIONS["translate-x"](image, torch.tensor([0.5]))
    assert moved[0, 0, 5].argmax().item() == 7  # 0.3 of half the side, against the direction of the sampling map


def test_each_picture_draws_its_own_operation():
    images = pictures(1).expand(40, -1, -1, -1)
    result = randaugment_operation(images, torch.Generator().manual_seed(3))
    assert len({tuple(picture.flatten()[:20].tolist()) for picture in result}) > 5


def test_dsa_is_differentiable_and_drawn_for_each_picture():
    images = torch.randn(1, 3, 16, 16).expand(6, -1, -1, -1).clone().requires_grad_()
    result = dsa(images, torch.Generator().manual_seed(2))
    result.sum().backward()
    assert torch.isfinite(images.grad).all()
    assert (images.grad != 0).any()
    assert not torch.allclose(result[0], result[1])
    assert torch.equal(result, dsa(images.detach(), torch.Generator().manual_seed(2)))
