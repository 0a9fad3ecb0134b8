"""A convolution with everything around it folded in: weight standardisation, batch norm, and ReLU."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

_ONEDNN = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_convolution_pointwise")


class NormTerms(NamedTuple):
    """What a batch norm with fixed statistics computes by."""

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor
    running_var: Tensor
    eps: float


def fold_terms(
    weight: Tensor,
    bias: Tensor | None,
    gain: Tensor | None,
    standardise: tuple[float, float] | None,
    norm: NormTerms | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """A convolution with all that is folded into it: weight, a factor for each of its output channels, and bias.

    `standardise` has the epsilon and the scale of a standardised weight.
    """
    scale = None
    if standardise is not None:  # `torch.var_mean` would do, at five times the cost
        weight = weight - weight.flatten(1).mean(dim=1).view(-1, 1, 1, 1)
        var = torch.linalg.vector_norm(weight.flatten(1), dim=1).square() / weight[0].numel()
        scale = torch.rsqrt(var + standardise[0]) * standardise[1]
        if gain is not None:
            scale = scale * gain.flatten()
    if norm is not None:
        factor = torch.rsqrt(norm.running_var + norm.eps)
        if norm.weight is not None:
            factor = factor * norm.weight
        bias = (-norm.running_mean if bias is None else bias - norm.running_mean) * factor
        if norm.bias is not None:
            bias = bias + norm.bias
        scale = factor if scale is None else scale * factor
    return weight, scale, bias


class FoldedConv(nn.Module):
    """A convolution whose weight is a function of the original's: standardised, then scaled by its batch norm.

    W' = s·std(W) and b' = s·(b − mean) + β with s = γ / √(var + eps); without a batch norm s = 1 and b' = b;
    std(W) = gain · scale · (W − mean W) / √(var W + eps) over each output channel, or W itself.
    The originals stay as buffers (`source_…`), so that some may be replaced and the rest kept.
    """

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d | None, ceiling: float | None) -> None:
        super().__init__()
        self.stride, self.dilation, self.groups = conv.stride, conv.dilation, conv.groups
        self.kernel_size, self.padding = conv.kernel_size, conv.padding
        self.same_pad = bool(getattr(conv, "same_pad", type(conv).__name__ == "Conv2dSame"))
        self.standardise_eps: float | None = getattr(conv, "eps", None)
        self.standardise_scale: float = getattr(conv, "scale", 1.0)
        self.norm_eps: float | None = norm.eps if norm is not None else None
        self.ceiling = ceiling
        names = {"weight": conv.weight, "bias": conv.bias, "gain": getattr(conv, "gain", None)}
        for name, value in names.items():
            self._keep(name, value)
        for name in ("weight", "bias", "running_mean", "running_var"):
            self._keep(f"norm_{name}", getattr(norm, name, None))
        has_bias = conv.bias is not None or norm is not None
        weight = torch.empty_like(conv.weight, memory_format=torch.channels_last)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(weight.new_empty(conv.out_channels), requires_grad=False) if has_bias else None
        self.refold()

    def _keep(self, name: str, value: Tensor | None) -> None:
        self.register_buffer(f"source_{name}", None if value is None else value.detach().clone(), persistent=False)

    @torch.no_grad()
    def refold(self) -> None:
        """Recompute weight and bias, in place, from the originals."""
        names = ("weight", "bias", "running_mean", "running_var")
        norm = {name: cast("Tensor | None", getattr(self, f"source_norm_{name}")) for name in names}
        standardise = None if self.standardise_eps is None else (self.standardise_eps, self.standardise_scale)
        weight, scale, bias = fold_terms(
            cast(Tensor, self.source_weight),
            cast("Tensor | None", self.source_bias),
            cast("Tensor | None", self.source_gain),
            standardise,
            None if self.norm_eps is None else NormTerms(**norm, eps=self.norm_eps),  # type: ignore[arg-type]
        )
        if scale is None:
            self.weight.copy_(weight)
        else:
            torch.mul(weight, scale.view(-1, 1, 1, 1), out=self.weight)
        if self.bias is not None and bias is not None:
            self.bias.copy_(bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """[N, C, H, W] → [N, O, H', W'], clipped to 0…ceiling where an activation was folded in."""
        padding = self.padding
        if self.same_pad:
            from timm.layers import pad_same

            inputs = pad_same(inputs, self.kernel_size, self.stride, self.dilation)
            padding = (0, 0)
        settings: Any = self.stride, padding, self.dilation, self.groups
        if self.ceiling is None:
            return conv2d(inputs, self.weight, self.bias, *settings)
        if not isinstance(padding, str) and fusible(inputs):
            return cast(Tensor, _ConvReLU.apply(inputs, self.weight, self.bias, *settings, self.ceiling))  # type: ignore[no-untyped-call]
        return conv2d(inputs, self.weight, self.bias, *settings).clamp(0, self.ceiling)


def fusible(inputs: Tensor) -> bool:
    """Whether oneDNN's fused operator serves this tensor; it is an internal one of torch and may go away."""
    here = inputs.device.type == "cpu" and inputs.dtype == torch.float32 and _ONEDNN
    return bool(here and torch.backends.mkldnn.enabled and not torch.is_autocast_enabled("cpu"))


def fused_conv(inputs: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> Tensor:
    """clamp(conv2d(inputs), 0, ceiling) by oneDNN; settings are stride, padding, dilation, groups and the ceiling."""
    stride, padding, dilation, groups, ceiling = settings
    clamp = ("relu", []) if math.isinf(ceiling) else ("hardtanh", [0.0, ceiling])
    fused = torch.ops.mkldnn._convolution_pointwise
    return cast(Tensor, fused(inputs, weight, bias, padding, stride, dilation, groups, *clamp, ""))


class _ConvReLU(torch.autograd.Function):
    """clamp(conv2d(x), 0, ceiling) in one pass over memory, with a gradient for x only.

    Elementwise passes cost a third of the network on a CPU. oneDNN clamps while the output is still in cache, and
    the output alone says where the gradient passes: not where it is 0 or the ceiling.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> Tensor:
        output = fused_conv(inputs, weight, bias, *settings)
        ctx.settings = settings
        ctx.save_for_backward(inputs, weight, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, output = ctx.saved_tensors
        stride, padding, dilation, groups, ceiling = ctx.settings
        grad = torch.ops.aten.hardtanh_backward(grads[0], output, 0, ceiling)
        to_input = torch.ops.aten.convolution_backward(
            grad, inputs, weight, None, stride, padding, dilation, False, [0, 0], groups, [True, False, False]
        )[0]
        return to_input, *[None] * 7
