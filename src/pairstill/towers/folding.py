"""A frozen image network, made fast: gradients reach the pixels only, and nothing is computed twice.

Weight standardisation and batch norm are functions of the weights alone once the weights are frozen, so both are
folded into plain convolutions, ReLU and ReLU6 into the convolution before them; memory is channels-last. New weights
for the original network are folded in place by `FoldedNetwork.load`.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from pairstill.errors import PairstillError
from pairstill.runtime.memory import keep_freed_memory
from pairstill.runtime.seeds import generator
from pairstill.towers.folded_conv import FoldedConv
from pairstill.towers.torchvision_shim import ensure_torchvision

Plan = Mapping[str, str | None]
"""Name of each convolution to fold → name of the batch norm that goes into it, if any."""


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
        save_no_copies(self.network)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def _locate(self, name: str) -> tuple[nn.Module, str]:
        owner, _, leaf = name.rpartition(".")
        return self.network.get_submodule(owner), leaf

    def _fold_one(self, conv: str, norm: str | None) -> None:
        """Replace a convolution by its folded form and its batch norm by what that leaves behind."""
        old = cast(nn.Conv2d, self.network.get_submodule(conv))
        normaliser = cast("nn.BatchNorm2d | None", self.network.get_submodule(norm) if norm else None)
        rest, ceiling = (nn.Identity(), None) if normaliser is None else left_by(normaliser)
        folded = FoldedConv(old, normaliser, ceiling)
        replace_layer(self.network, old, folded)
        for leaf in dict(old.named_parameters(recurse=False)):
            self._slots[f"{conv}.{leaf}"] = folded, f"source_{leaf}"
        if normaliser is not None:
            replace_layer(self.network, normaliser, rest)
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
            parameters: By their names in the original module; the others stay as they are. They must not be
                changed in place afterwards: some are kept without a copy.

        Raises:
            PairstillError: A name or shape is not the original's. Nothing has changed then.
        """
        slots = {name: self._slot(name, value) for name, value in parameters.items()}
        with _one_thread():
            for name, (owner, leaf) in slots.items():
                if leaf.startswith("source_"):  # only read, by refold
                    setattr(owner, leaf, parameters[name].detach().to(getattr(owner, leaf)))
                else:
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
    """Freeze and fold an image network for images of `image_size`.

    Every fold is checked against the original, with all scales and statistics made random, before it is used. A
    network whose batch norms cannot be folded keeps them; the last resort is frozen but not folded. Both warn.
    """
    keep_freed_memory()
    with _one_thread():
        try:
            return _fold(module, image_size)
        except (AssertionError, RuntimeError) as error:
            raise PairstillError(
                f"{getattr(module, 'name', type(module).__name__)} can't read images of {image_size} px: {error}. "
                "Choose the size that it was made for with --towers.image-size, or another image encoder."
            ) from error


def _fold(module: nn.Module, image_size: int) -> FoldedNetwork:
    """The first plan that proves faithful."""
    full = find_foldable(module, noise_for(module, image_size))
    weights_only = {conv: None for conv in full if hasattr(module.get_submodule(conv), "eps")}
    plans: list[Plan] = [full, weights_only] if weights_only != full else [full]
    for plan in plans:
        if is_faithful(module, plan, image_size):
            return FoldedNetwork(module, plan)
        warnings.warn(f"{type(module).__name__} cannot be folded as planned; a slower form is used.", stacklevel=3)
    return FoldedNetwork(module, {})


@torch.no_grad()
def find_foldable(module: nn.Module, sample: Tensor) -> Plan:
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
    probe(sample)
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
    probe = randomised(module)
    pixels = noise_for(probe, image_size)
    expected = probe(pixels)
    error = torch.linalg.vector_norm(FoldedNetwork(probe, plan)(pixels) - expected)
    return bool(error <= 1e-3 * torch.linalg.vector_norm(expected))


@torch.no_grad()
def randomised(module: nn.Module) -> nn.Module:
    """A copy with random scales, shifts and statistics, in eval mode."""
    probe, source = copy.deepcopy(module).eval(), generator(0, "fold")
    for value in probe.parameters():
        if value.dim() < 2 or value.numel() == value.shape[0] or not value.any():
            value.add_(torch.randn(value.shape, generator=source).to(value), alpha=0.1)
    for layer in probe.modules():
        if isinstance(layer, nn.BatchNorm2d) and layer.running_mean is not None and layer.running_var is not None:
            layer.running_mean.copy_(torch.randn(layer.num_features, generator=source) * 0.1)
            layer.running_var.copy_(torch.rand(layer.num_features, generator=source) + 0.5)
    return probe


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Hundreds of small operations: on a busy machine threads wait for one another far longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def noise_for(module: nn.Module, image_size: int) -> Tensor:
    """Two fixed images of noise, of the module's type and device."""
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


def left_by(norm: nn.BatchNorm2d) -> tuple[nn.Module, float | None]:
    """What remains of a folded batch norm: a module, and the ceiling of a ReLU that the convolution can take over."""
    drop, act = getattr(norm, "drop", nn.Identity()), getattr(norm, "act", nn.Identity())
    if isinstance(drop, nn.Identity) and type(act) in (nn.ReLU, nn.ReLU6):
        return nn.Identity(), 6.0 if type(act) is nn.ReLU6 else float("inf")
    return nn.Sequential(drop, act), None


def replace_layer(root: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put `new` wherever `old` hangs."""
    for parent in list(root.modules()):
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)


def save_no_copies(network: nn.Module) -> None:
    """In-place activations other than ReLU make autograd copy their input first: out of place is cheaper."""
    for layer in network.modules():
        if getattr(layer, "inplace", False) and not isinstance(layer, (nn.ReLU, nn.LeakyReLU)):
            layer.inplace = False  # type: ignore[assignment]
