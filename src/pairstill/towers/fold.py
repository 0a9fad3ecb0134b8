"""A frozen image network, made fast: gradients reach the pixels only, and nothing is computed twice.

Weight standardisation and batch norm are functions of the weights alone once the weights are frozen, so both are
folded into plain convolutions, ReLU and ReLU6 into the convolution before them; memory is channels-last. New weights
for the original network are folded in place by `FoldedNetwork.load`.
"""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from pairstill.errors import PairstillError
from pairstill.seeds import generator
from pairstill.towers.torchvision_shim import ensure_torchvision

Plan = Mapping[str, str | None]
"""Name of each convolution to fold → name of the batch norm that goes into it, if any."""


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
        if self.standardise_eps is not None:
            var, mean = torch.var_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
            factor = torch.rsqrt(var + self.standardise_eps) * self.standardise_scale
            if self.source_gain is not None:
                factor = factor * cast(Tensor, self.source_gain)
            weight = (weight - mean) * factor
        if self.norm_eps is not None:
            mean, var = (
                cast(Tensor, self.source_norm_running_mean),
                cast(Tensor, self.source_norm_running_var),
            )
            scale = torch.rsqrt(var + self.norm_eps)
            if self.source_norm_weight is not None:
                scale = scale * cast(Tensor, self.source_norm_weight)
            weight = weight * scale.view(rows)
            bias = (-mean if bias is None else bias - mean) * scale
            if self.source_norm_bias is not None:
                bias = bias + cast(Tensor, self.source_norm_bias)
        self.weight.copy_(weight)
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
        if not isinstance(padding, str) and _fusible(inputs):
            return cast(Tensor, _ConvReLU.apply(inputs, self.weight, self.bias, *settings, self.ceiling))  # type: ignore[no-untyped-call]
        return conv2d(inputs, self.weight, self.bias, *settings).clamp(0, self.ceiling)


def _fusible(inputs: Tensor) -> bool:
    """Whether oneDNN's fused operator serves this tensor; it is an internal one of torch and may go away."""
    here = inputs.device.type == "cpu" and inputs.dtype == torch.float32 and _ONEDNN
    return bool(here and torch.backends.mkldnn.enabled)


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


class FoldedNetwork(nn.Module):
    """A frozen, folded copy of an image network; always in eval mode. Build it with `fold`, which checks it.

    Attributes:
        network: The folded copy.
        plan: What was folded.
    """

    def __init__(self, module: nn.Module, plan: Plan) -> None:
        super().__init__()
        self.network = copy.deepcopy(module).requires_grad_(False).eval()
        self.plan = dict(plan)
        self._slots: dict[str, tuple[nn.Module, str]] = {}
        for name, _ in [*module.named_parameters(), *module.named_buffers()]:
            self._slots[name] = self._locate(name)
        for conv, norm in self.plan.items():
            self._fold_one(conv, norm)
        _save_no_copies(self.network)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def _locate(self, name: str) -> tuple[nn.Module, str]:
        owner, _, leaf = name.rpartition(".")
        return self.network.get_submodule(owner), leaf

    def _fold_one(self, conv: str, norm: str | None) -> None:
        """Replace a convolution by its folded form and its batch norm by what that leaves behind."""
        old = cast(nn.Conv2d, self.network.get_submodule(conv))
        normaliser = cast("nn.BatchNorm2d | None", self.network.get_submodule(norm) if norm else None)
        rest, ceiling = (nn.Identity(), None) if normaliser is None else _left_by(normaliser)
        folded = FoldedConv(old, normaliser, ceiling)
        _replace(self.network, old, folded)
        for leaf in dict(old.named_parameters(recurse=False)):
            self._slots[f"{conv}.{leaf}"] = folded, f"source_{leaf}"
        if normaliser is not None:
            _replace(self.network, normaliser, rest)
            self._slots.pop(f"{norm}.num_batches_tracked", None)
            for leaf in ("weight", "bias", "running_mean", "running_var"):
                if getattr(normaliser, leaf) is not None:
                    self._slots[f"{norm}.{leaf}"] = folded, f"source_norm_{leaf}"

    def forward(self, pixels: Tensor) -> Tensor:
        """As the original: normalised pixels [N, 3, H, W] → [N, width]."""
        return cast(Tensor, self.network(pixels.contiguous(memory_format=torch.channels_last)))

    def train(self, mode: bool = True) -> FoldedNetwork:
        """Stay in eval mode: the network is frozen."""
        return super().train(False)

    @torch.no_grad()
    def load(self, parameters: Mapping[str, Tensor]) -> None:
        """Take new values for the original module's parameters (or buffers) and fold them in place.

        Args:
            parameters: By their names in the original module; the others stay as they are. Values are copied.

        Raises:
            PairstillError: A name or shape is not the original's. Nothing has changed then.
        """
        slots = {name: self._slot(name, value) for name, value in parameters.items()}
        with _one_thread():
            for name, (owner, leaf) in slots.items():
                getattr(owner, leaf).copy_(parameters[name])
            for conv in {owner for owner, _ in slots.values() if isinstance(owner, FoldedConv)}:
                conv.refold()

    def _slot(self, name: str, value: Tensor) -> tuple[nn.Module, str]:
        if name not in self._slots:
            raise PairstillError(f"the folded network has no parameter '{name}'.")
        owner, leaf = self._slots[name]
        shape = tuple(getattr(owner, leaf).shape)
        if tuple(value.shape) != shape:
            raise PairstillError(f"parameter '{name}' has shape {tuple(value.shape)}, the network's is {shape}.")
        return owner, leaf


def fold(module: nn.Module, image_size: int) -> FoldedNetwork:
    """Freeze and fold an image network for pictures of `image_size`.

    Every fold is checked against the original, with all scales and statistics made random, before it is used. A
    network whose batch norms cannot be folded keeps them; the last resort is frozen but not folded. Both warn.
    """
    with _one_thread():
        return _fold(module, image_size)


def _fold(module: nn.Module, image_size: int) -> FoldedNetwork:
    """The first plan that proves faithful."""
    full = find_foldable(module, image_size)
    weights_only = {conv: None for conv in full if hasattr(module.get_submodule(conv), "eps")}
    plans: list[Plan] = [full, weights_only] if weights_only != full else [full]
    for plan in plans:
        if is_faithful(module, plan, image_size):
            return FoldedNetwork(module, plan)
        warnings.warn(f"{type(module).__name__} cannot be folded as planned; a slower form is used.", stacklevel=3)
    return FoldedNetwork(module, {})


@torch.no_grad()
def find_foldable(module: nn.Module, image_size: int) -> Plan:
    """Follow one forward pass: convolutions with standardised weights, and those read by one batch norm only."""
    ensure_torchvision()
    probe = copy.deepcopy(module).eval()
    names = {layer: name for name, layer in probe.named_modules()}
    made: dict[int, tuple[str, Tensor]] = {}  # the tensors are kept, or their ids would be used again
    readers: dict[str, list[str]] = {}
    calls: Counter[str] = Counter()

    def before(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls[names[layer]] += 1
        for value in (*args, *kwargs.values()):
            if id(value) in made:
                readers.setdefault(made[id(value)][0], []).append(names[layer])

    def after(layer: nn.Module, args: Any, output: Any) -> None:
        if _is_conv(layer):
            made[id(output)] = names[layer], output

    for layer in names:
        layer.register_forward_pre_hook(before, with_kwargs=True)
        layer.register_forward_hook(after)
    probe(_noise(probe, image_size))
    plan: dict[str, str | None] = {}
    for conv, _ in made.values():
        layer, norm = probe.get_submodule(conv), _only_norm(probe, readers.get(conv, []), calls)
        if calls[conv] == 1 and (norm is not None or hasattr(layer, "eps")):
            plan[conv] = norm
    return plan


@torch.no_grad()
def is_faithful(module: nn.Module, plan: Plan, image_size: int) -> bool:
    """Whether folding by this plan changes nothing, with random scales, shifts and statistics.

    Real values would not do: a branch that starts with gain 0 hides whatever is wrong inside it.
    """
    probe, source = copy.deepcopy(module).eval(), generator(0, "fold")
    for value in probe.parameters():
        if value.dim() < 2 or value.numel() == value.shape[0] or not value.any():
            value.add_(torch.randn(value.shape, generator=source).to(value), alpha=0.1)
    for layer in probe.modules():
        if isinstance(layer, nn.BatchNorm2d) and layer.running_mean is not None and layer.running_var is not None:
            layer.running_mean.copy_(torch.randn(layer.num_features, generator=source) * 0.1)
            layer.running_var.copy_(torch.rand(layer.num_features, generator=source) + 0.5)
    pixels = _noise(probe, image_size)
    expected = probe(pixels)
    error = torch.linalg.vector_norm(FoldedNetwork(probe, plan)(pixels) - expected)
    return bool(error <= 1e-3 * torch.linalg.vector_norm(expected))


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Hundreds of small operations: on a busy machine threads wait for one another far longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _noise(module: nn.Module, image_size: int) -> Tensor:
    """Two fixed pictures of noise, of the module's type and device."""
    like = next(module.parameters())
    pixels = torch.randn(2, 3, image_size, image_size, generator=generator(0, "fold", "pixels"))
    return pixels.to(like)


def _is_conv(layer: nn.Module) -> bool:
    """A convolution whose formula `FoldedConv` knows: the exact types, for a subclass may do anything."""
    from timm.layers import Conv2dSame, ScaledStdConv2d, ScaledStdConv2dSame, StdConv2d, StdConv2dSame

    known = (nn.Conv2d, Conv2dSame, StdConv2d, StdConv2dSame, ScaledStdConv2d, ScaledStdConv2dSame)
    return type(layer) in known and cast(nn.Conv2d, layer).padding_mode == "zeros"


def _only_norm(probe: nn.Module, readers: list[str], calls: Counter[str]) -> str | None:
    """The one batch norm among a tensor's readers, if the others are merely the modules that contain it."""
    from timm.layers import BatchNormAct2d

    for name in readers:
        norm = probe.get_submodule(name)
        if type(norm) in (nn.BatchNorm2d, BatchNormAct2d) and cast(nn.BatchNorm2d, norm).running_mean is not None:
            alone = all(name == other or name.startswith(f"{other}.") or not other for other in readers)
            return name if alone and calls[name] == 1 else None
    return None


def _left_by(norm: nn.BatchNorm2d) -> tuple[nn.Module, float | None]:
    """What remains of a folded batch norm: a module, and the ceiling of a ReLU that the convolution can take over."""
    drop, act = getattr(norm, "drop", nn.Identity()), getattr(norm, "act", nn.Identity())
    if isinstance(drop, nn.Identity) and type(act) in (nn.ReLU, nn.ReLU6):
        return nn.Identity(), 6.0 if type(act) is nn.ReLU6 else float("inf")
    return nn.Sequential(drop, act), None


def _replace(root: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put `new` wherever `old` hangs."""
    for parent in list(root.modules()):
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)


def _save_no_copies(network: nn.Module) -> None:
    """In-place activations other than ReLU make autograd copy their input first: out of place is cheaper."""
    for layer in network.modules():
        if getattr(layer, "inplace", False) and not isinstance(layer, (nn.ReLU, nn.LeakyReLU)):
            layer.inplace = False  # type: ignore[assignment]
