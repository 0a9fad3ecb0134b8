from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

from pairstill.errors import PairstillError
from pairstill.towers.folding import FoldedNetwork, fold
from pairstill.towers.image_encoder import load_image_encoder
from pairstill.towers.torchvision_shim import ensure_torchvision

TINY = ["test_resnet", "test_efficientnet", "test_byobnet", "test_nfnet"]
REAL = ["tf_efficientnet_lite0", "efficientnet_b0", "seresnet50", "resnetv2_50", "nf_regnet_b0", "nf_resnet50"]


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors: on a busy machine threads wait for one another longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def shaken(module: nn.Module, seed: int = 0) -> nn.Module:
    """Make scales, gains, biases and statistics random, so that a wrong fold shows."""
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in module.parameters():
            if value.dim() < 2 or value.numel() == value.shape[0]:
                value.add_(0.1 * torch.randn(value.shape, generator=source))
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.copy_(0.1 * torch.randn(layer.num_features, generator=source))
                layer.running_var.copy_(0.5 + torch.rand(layer.num_features, generator=source))
    return module.eval()


def create(name: str) -> nn.Module:
    ensure_torchvision()
    import timm

    torch.manual_seed(0)
    return shaken(timm.create_model(name, num_classes=0))


def distance(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def assert_same(folded: nn.Module, original: nn.Module, size: int = 64, tolerance: float = 1e-4) -> None:
    """Outputs and pixel gradients agree."""
    source = torch.Generator().manual_seed(5)
    like = next(original.parameters())
    pixels = torch.randn(2, 3, size, size, generator=source).to(like.dtype)
    ours, theirs = (pixels.clone().requires_grad_() for _ in range(2))
    found, expected = folded(ours), original(theirs)
    direction = torch.randn(expected.shape, generator=source).to(like.dtype)
    (found * direction).sum().backward()
    (expected * direction).sum().backward()
    assert distance(found, expected) < tolerance
    assert distance(ours.grad, theirs.grad) < tolerance


@pytest.mark.parametrize("name", TINY + REAL)
def test_folded_equals_original(name: str) -> None:
    original = create(name)
    folded = fold(original, 64)
    assert_same(folded, original)
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    if name != "resnetv2_50":  # its pre-activation norms have no convolution before them
        assert not any(isinstance(layer, nn.BatchNorm2d) for layer in folded.modules())


def all_convs() -> nn.Module:
    """Each convolution type once, alone and before a batch norm."""
    ensure_torchvision()
    from timm.layers import (
        BatchNormAct2d,
        Conv2dSame,
        ScaledStdConv2d,
        ScaledStdConv2dSame,
        StdConv2d,
        StdConv2dSame,
    )

    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 3)]
    for conv in (nn.Conv2d, Conv2dSame, StdConv2d, StdConv2dSame, ScaledStdConv2d, ScaledStdConv2dSame):
        options = {"padding": 1} if conv is nn.Conv2d else {}
        stride = 2 if "Same" in conv.__name__ else 1
        layers += [conv(8, 8, 3, stride=stride, bias=True, **options), nn.GELU()]
        layers += [conv(8, 8, 3, groups=8, bias=False, **options), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
        layers += [conv(8, 8, 1, bias=True), BatchNormAct2d(8, act_layer=nn.ReLU6)]
        layers += [conv(8, 8, 1, bias=False), BatchNormAct2d(8, act_layer=nn.SiLU)]
    return shaken(nn.Sequential(*layers, nn.Flatten()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_convolution_type_folds(dtype: torch.dtype) -> None:
    original = all_convs().to(dtype)
    folded = fold(original, 45)
    assert len(folded.plan) == 6 * 4 - 2  # a lone plain convolution has nothing to fold
    # In float32 a unit at the kink of its ReLU may fall on the other side; float64 shows the formula is exact.
    assert_same(folded, original, size=45, tolerance=1e-3 if dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize("name", TINY)
def test_loading_new_weights_equals_a_fresh_fold(name: str) -> None:
    original = create(name)
    folded = fold(original, 64)
    places = [value.data_ptr() for value in folded.parameters()]
    changed = shaken(copy.deepcopy(original), seed=1)
    with torch.no_grad():
        for value in changed.parameters():
            value.mul_(1.1)
    for layer, other in zip(changed.modules(), original.modules(), strict=True):
        if isinstance(layer, nn.BatchNorm2d):  # training leaves statistics alone
            layer.running_mean.copy_(other.running_mean)
            layer.running_var.copy_(other.running_var)
    folded.load(dict(changed.named_parameters()))
    assert_same(folded, changed)
    assert places == [value.data_ptr() for value in folded.parameters()]
    for mine, fresh in zip(folded.parameters(), fold(changed, 64).parameters(), strict=True):
        assert torch.equal(mine, fresh)


def test_a_part_of_the_weights_can_be_loaded() -> None:
    original = create("test_efficientnet")
    folded = fold(original, 64)
    changed = shaken(copy.deepcopy(original), seed=2)
    names = [name for name, _ in changed.named_parameters()][::3]
    some = {name: value for name, value in changed.named_parameters() if name in names}
    original.load_state_dict({**original.state_dict(), **some})
    folded.load(some)
    assert_same(folded, original)


def test_the_loaded_values_are_copies() -> None:
    original = create("test_resnet")
    folded = fold(original, 64)
    values = {name: value.clone() for name, value in original.named_parameters()}
    folded.load(values)
    for value in values.values():
        value.data.zero_()
    folded.load({})
    assert_same(folded, original)


def test_wrong_parameters_are_refused_before_anything_changes() -> None:
    original = create("test_resnet")
    folded = fold(original, 64)
    first = next(iter(dict(original.named_parameters())))
    with pytest.raises(PairstillError, match="no parameter 'nonsense'"):
        folded.load({first: torch.zeros_like(original.get_parameter(first)), "nonsense": torch.zeros(1)})
    with pytest.raises(PairstillError, match="shape"):
        folded.load({first: torch.zeros(1)})
    assert_same(folded, original)


class Branching(nn.Module):
    """The convolution's output goes past its batch norm too, outside any module."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, pixels: Tensor) -> Tensor:
        hidden = self.conv(pixels)
        return (self.norm(hidden) + hidden.sin()).flatten(1)


def test_what_cannot_be_folded_is_kept_and_said() -> None:
    original = shaken(Branching())
    with pytest.warns(UserWarning, match="cannot be folded"):
        folded = fold(original, 16)
    assert folded.plan == {}
    assert_same(folded, original, size=16)


class HiddenByZero(Branching):
    """The wrong branch is multiplied by a gain that starts at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(()))

    def forward(self, pixels: Tensor) -> Tensor:
        return pixels.mean((2, 3)).repeat(1, 2)[:, :4] + self.gain * super().forward(pixels).mean()


def test_a_gain_of_zero_does_not_hide_a_wrong_fold() -> None:
    with pytest.warns(UserWarning, match="cannot be folded"):
        assert fold(HiddenByZero().eval(), 16).plan == {}


def test_a_norm_read_by_two_convolutions_turns_is_left_alone() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.norm = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, pixels: Tensor) -> Tensor:
            return self.norm(self.second(self.norm(self.first(pixels)))).flatten(1)

    original = shaken(Shared())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folded = fold(original, 8)
    assert folded.plan == {}
    assert_same(folded, original, size=8)


def test_folding_leaves_the_original_and_the_random_state_alone() -> None:
    encoder = load_image_encoder("test_efficientnet@random").train()
    before, state = copy.deepcopy(encoder.state_dict()), torch.get_rng_state()
    folded = fold(encoder, 64)
    assert isinstance(folded, FoldedNetwork)
    assert encoder.training and not folded.train().training
    assert all(parameter.requires_grad for parameter in encoder.parameters())
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
