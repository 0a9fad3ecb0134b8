"""A convolution that is trained, one step with the batch norm and the ReLU behind it, and quick to differentiate twice.

A student whose training is itself differentiated passes its gradients' graph backwards. PyTorch does that for a grouped
convolution group by group, a thousand small convolutions for each depthwise one. Here both passes are whole
convolutions: with output y = x * W, masked where a ReLU clips, and cotangents u of x's gradient and U of W's,

    gradients of g (that of y)     u * W + x * U
    gradient of x                  g * U, as of a convolution with kernel U
    gradient of W                  g * u, as of a convolution that reads u
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d

from pairstill.towers.folded_conv import NormTerms, fold_terms, fused_conv, fusible


class FoldedAwayNorm(nn.Module):
    """What stands in a batch norm's place: its parameters and statistics by their names, and what it did besides."""

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: nn.BatchNorm2d, rest: nn.Module) -> None:
        super().__init__()
        for name, parameter in norm.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        for name in {"weight", "bias"} - set(self._parameters):
            self.register_parameter(name, None)
        for name, buffer in norm.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        self.eps, self._rest = norm.eps, rest

    def forward(self, inputs: Tensor) -> Tensor:
        """What is left to do."""
        return cast(Tensor, self._rest(inputs))

    def terms(self) -> NormTerms:
        """What the norm computes by."""
        return NormTerms(self.weight, self.bias, self.running_mean, self.running_var, self.eps)


class TrainedConv(nn.Module):
    """A convolution by the parameters of another, which keep their names, and by those of the norm behind it."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, conv: nn.Conv2d, norm: FoldedAwayNorm | None, ceiling: float | None) -> None:
        super().__init__()
        for name, parameter in conv.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        for name in {"bias", "gain"} - set(self._parameters):
            self.register_parameter(name, None)
        self.settings = conv.stride, conv.padding, conv.dilation, conv.groups
        self.kernel_size = conv.kernel_size
        self.same_pad = bool(getattr(conv, "same_pad", type(conv).__name__ == "Conv2dSame"))
        eps = getattr(conv, "eps", None)
        self.standardise = None if eps is None else (float(eps), float(getattr(conv, "scale", 1.0)))
        self.ceiling = ceiling
        self._norm = [norm]  # in a list: its place in the network is its own

    def forward(self, inputs: Tensor) -> Tensor:
        """[N, C, H, W] → [N, O, H', W'], clipped to 0…ceiling where an activation was folded in."""
        (norm,) = self._norm
        terms = None if norm is None else norm.terms()
        weight, scale, bias = fold_terms(self.weight, self.bias, cast(Any, self).gain, self.standardise, terms)
        weight = weight if scale is None else weight * scale.view(-1, 1, 1, 1)
        stride, padding, dilation, groups = self.settings
        if self.same_pad:
            from timm.layers import pad_same

            inputs, padding = pad_same(inputs, self.kernel_size, stride, dilation), (0, 0)
        kind = inputs.device.type
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            inputs, weight, bias = inputs.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        return cast(Tensor, _Conv.apply(inputs, weight, bias, stride, padding, dilation, groups, self.ceiling))  # type: ignore[no-untyped-call]


class _Conv(torch.autograd.Function):
    """conv2d(x), clipped to 0…ceiling unless the ceiling is None."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> Tensor:
        *plain, ceiling = settings
        if ceiling is None:
            output = conv2d(inputs, weight, bias, *plain)
        elif fusible(inputs):
            output = fused_conv(inputs, weight, bias, *settings)
        else:
            output = conv2d(inputs, weight, bias, *plain).clamp(0, ceiling)
        ctx.settings = settings
        ctx.save_for_backward(inputs, weight, None if ceiling is None else output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        found = _ConvBackward.apply(grads[0], *ctx.saved_tensors, ctx.needs_input_grad[:3], ctx.settings)  # type: ignore[no-untyped-call]
        return (*found, *[None] * len(ctx.settings))


class _ConvBackward(torch.autograd.Function):
    """The gradients of inputs, weight and bias, those that are needed."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, inputs: Tensor, weight: Tensor, output: Tensor | None, needed: Any, settings: Any
    ) -> tuple[Tensor | None, ...]:
        grad = _clipped(grad, output, settings[-1])
        ctx.settings = settings
        ctx.save_for_backward(grad, inputs, weight, output)
        ctx.set_materialize_grads(False)
        return _gradients(grad, inputs, weight, settings, needed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        grad, inputs, weight, output = ctx.saved_tensors
        of_inputs, of_weight, of_bias = cotangents
        *plain, ceiling = ctx.settings
        parts = []
        if of_inputs is not None:
            parts.append(conv2d(of_inputs, weight, None, *plain))
        if of_weight is not None:
            parts.append(conv2d(inputs, of_weight, None, *plain))
        if of_bias is not None:
            parts.append(of_bias.view(1, -1, 1, 1).expand_as(grad))
        to_grad = _clipped(sum(parts[1:], parts[0]), output, ceiling) if parts and ctx.needs_input_grad[0] else None
        to_inputs = to_weight = None
        if of_weight is not None and ctx.needs_input_grad[1]:
            to_inputs = _gradients(grad, inputs, of_weight, ctx.settings, (True, False, False))[0]
        if of_inputs is not None and ctx.needs_input_grad[2]:
            to_weight = _gradients(grad, of_inputs, weight, ctx.settings, (False, True, False))[1]
        return to_grad, to_inputs, to_weight, None, None, None


def _clipped(grad: Tensor, output: Tensor | None, ceiling: float | None) -> Tensor:
    """A gradient where the activation lets it pass: not where its output is 0 or the ceiling."""
    if output is None or ceiling is None:
        return grad
    return cast(Tensor, torch.ops.aten.hardtanh_backward(grad, output, 0, ceiling))


def _gradients(grad: Tensor, inputs: Tensor, weight: Tensor, settings: Any, needed: Any) -> tuple[Tensor | None, ...]:
    """Of a plain convolution: of its inputs, weight and bias."""
    stride, padding, dilation, groups, _ = settings
    channels = [weight.shape[0]]
    return tuple(
        torch.ops.aten.convolution_backward(
            grad, inputs, weight, channels, stride, padding, dilation, False, [0, 0], groups, list(needed)
        )
    )
