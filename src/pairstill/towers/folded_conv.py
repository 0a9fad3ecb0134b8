"""A convolution with everything around it folded in: weight standardisation, batch norm, and ReLU."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

_ONEDNN = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_convolution_pointwise")


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
        weight, bias = cast(Tensor, self.source_weight), cast("Tensor | None", self.source_bias)
        rows = (-1, 1, 1, 1)
        scale = None
        if self.standardise_eps is not None:  # `torch.var_mean` would do, at five times the cost
            weight = weight - weight.flatten(1).mean(dim=1).view(rows)
            var = torch.linalg.vector_norm(weight.flatten(1), dim=1).square() / weight[0].numel()
            scale = torch.rsqrt(var + self.standardise_eps) * self.standardise_scale
            if self.source_gain is not None:
                scale = scale * cast(Tensor, self.source_gain).flatten()
        if self.norm_eps is not None:
            norm_scale, bias = self._norm(bias)
            scale = norm_scale if scale is None else scale * norm_scale
        if scale is None:
            self.weight.copy_(weight)
        else:
            torch.mul(weight, scale.view(rows), out=self.weight)
        if self.bias is not None and bias is not None:
            self.bias.copy_(bias)

    def _norm(self, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """The batch norm's factor s of each output channel, and the bias that it leaves."""
        mean, var = cast(Tensor, self.source_norm_running_mean), cast(Tensor, self.source_norm_running_var)
        scale = torch.rsqrt(var + cast(float, self.norm_eps))
        if self.source_norm_weight is not None:
            scale = scale * cast(Tensor, self.source_norm_weight)
        bias = (-mean if bias is None else bias - mean) * scale
        return scale, bias if self.source_norm_bias is None else bias + cast(Tensor, self.source_norm_bias)

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
        if not isinstance(padding, str) and _fusible(inputs):
            return cast(Tensor, _ConvReLU.apply(inputs, self.weight, self.bias, *settings, self.ceiling))  # type: ignore[no-untyped-call]
        return conv2d(inputs, self.weight, self.bias, *settings).clamp(0, self.ceiling)


def _fusible(inputs: Tensor) -> bool:
    """Whether oneDNN's fused operator serves this tensor; it is an internal one of torch and may go away."""
    here = inputs.device.type == "cpu" and inputs.dtype == torch.float32 and _ONEDNN
    return bool(here and torch.backends.mkldnn.enabled and not torch.is_autocast_enabled("cpu"))


class _ConvReLU(torch.autograd.Function):
    """clamp(conv2d(x), 0, ceiling) in one pass over memory, with a gradient for x only.

    Elementwise passes cost a third of the network on a CPU. oneDNN clamps while the output is still in cache, and
    the output alone says where the gradient passes: not where it is 0 or the ceiling.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> Tensor:
        stride, padding, dilation, groups, ceiling = settings
        clamp = ("relu", []) if math.isinf(ceiling) else ("hardtanh", [0.0, ceiling])
        fused = torch.ops.mkldnn._convolution_pointwise
        output: Tensor = fused(inputs, weight, bias, padding, stride, dilation, groups, *clamp, "")
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
