import copy

import pytest
import torch
from timm.layers import BatchNormAct2d, Conv2dSame, ScaledStdConv2d, StdConv2d
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

from pairstill.towers.trained_conv import FoldedAwayNorm, TrainedConv

CONVS = {
    "plain": lambda: nn.Conv2d(3, 4, 3, padding=1),
    "strided": lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False),
    "grouped": lambda: nn.Conv2d(4, 8, 3, padding=2, dilation=2, groups=4, bias=False),
    "depthwise": lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4),
    "same": lambda: Conv2dSame(3, 4, 3, stride=2),
    "standardised": lambda: StdConv2d(3, 4, 3, padding=1),
    "scaled": lambda: ScaledStdConv2d(3, 4, 3, padding=1),
}


def randomised(layer):
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in [*layer.parameters(), *(b for b in layer.buffers() if b.is_floating_point())]:
            value.copy_(torch.rand(value.shape, generator=random) + 0.2)
    return layer.double().eval()


def built(kind, norm):
    """A convolution and what stands behind it, as layers and as one."""
    conv = randomised(CONVS[kind]())
    behind = {
        "none": None,
        "norm": nn.BatchNorm2d(conv.out_channels),
        "norm and relu6": BatchNormAct2d(conv.out_channels, act_layer=nn.ReLU6),
        "norm and relu": BatchNormAct2d(conv.out_channels, act_layer=nn.ReLU),
    }[norm]
    if behind is None:
        return conv, TrainedConv(copy.deepcopy(conv), None, None)
    behind = randomised(behind)
    ceiling = {"norm": None, "norm and relu6": 6.0, "norm and relu": float("inf")}[norm]
    layers = nn.Sequential(conv, behind)
    own_conv, own_norm = copy.deepcopy(conv), FoldedAwayNorm(copy.deepcopy(behind), nn.Identity())
    return layers, nn.Sequential(TrainedConv(own_conv, own_norm, ceiling), own_norm)


def inputs_for(kind):
    channels = CONVS[kind]().in_channels
    return torch.randn(2, channels, 7, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("norm", ["none", "norm", "norm and relu6", "norm and relu"])
@pytest.mark.parametrize("kind", CONVS)
def test_output_gradients_and_their_gradients_are_those_of_the_layers(kind, norm):
    found = []
    for network in built(kind, norm):
        inputs = inputs_for(kind).requires_grad_()
        weights = list(network.parameters())
        output = network(inputs)
        # Once: of inputs and weights. Twice: of a mixture of these, as when training is differentiated.
        first = torch.autograd.grad((output**3).sum(), [inputs, *weights], create_graph=True)
        mixture = sum((grad * (index + 1)).square().sum() for index, grad in enumerate(first))
        second = torch.autograd.grad(mixture, [inputs, *weights])
        found.append((output, *first, *second))
    by_layers, as_one = found
    assert len(by_layers) == len(as_one)
    for expected, value in zip(by_layers, as_one, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", ["strided", "grouped", "same"])
def test_gradients_are_those_of_finite_differences(kind):
    _, network = built(kind, "norm")
    inputs = inputs_for(kind)[:1, :, :5, :5].contiguous().requires_grad_()
    names, values = zip(*network.named_parameters(), strict=True)

    def function(x, *parameters):
        return torch.func.functional_call(network, dict(zip(names, parameters, strict=True)), (x,))

    assert gradcheck(function, (inputs, *values))
    assert gradgradcheck(function, (inputs, *values))


def test_only_what_is_asked_for_gets_a_gradient():
    _, network = built("depthwise", "norm")
    network.requires_grad_(False)
    inputs = inputs_for("depthwise").requires_grad_()
    (first,) = torch.autograd.grad(network(inputs).square().sum(), inputs, create_graph=True)
    torch.autograd.grad(first.square().sum(), inputs)
    assert all(parameter.grad is None for parameter in network.parameters())


def test_in_lower_precision_all_of_it_is():
    _, network = built("plain", "norm and relu6")
    network = network.float()
    with torch.autocast("cpu", torch.bfloat16):
        output = network(inputs_for("plain").float())
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert {parameter.grad.dtype for parameter in network.parameters()} == {torch.float32}
