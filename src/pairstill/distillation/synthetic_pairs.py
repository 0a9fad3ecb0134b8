"""SyntheticPairs: the pixels and text embeddings that are being optimised, with their optimiser."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

EXPLODED = 1e4
"""Normalised pixels and text embeddings are of order 1; a value this large means that the step sizes are wrong."""


ADAM_BETA = 0.999
"""Adam's second beta."""

SLOTS = ("momentum_buffer", "step", "exp_avg", "exp_avg_sq")
"""What the optimisers keep for a parameter."""


class Diverged(Exception):
    """The loss, its gradient or the pairs left the finite world; the pairs are as they were before the step."""


class SyntheticPairs:
    """N images [N, 3, S, S], N text embeddings [N, d_t] and whatever else is learnt, moved by SGD or Adam.

    Attributes:
        images, texts: The pairs.
        image_blocks: The images again, as blocks that are updated one at a time: a block without a gradient stays as it
            is, and so does all that its optimiser keeps. One block, unless more were asked for.
        extra: What is learnt besides, by name.
        kept: What is not learnt and yet part of the state, by name.
    """

    def __init__(
        self,
        images: Tensor,
        texts: Tensor,
        image_lr: float,
        text_lr: float,
        momentum: float,
        extra: Mapping[str, tuple[Tensor, float]] | None = None,
        adam: bool = False,
        blocks: int = 1,
    ) -> None:
        """`extra` has, by name, what else is learnt and its step size; Adam's first beta is the momentum."""
        # In the memory layout that convolutions like, so that neither pixels nor their gradient are ever rearranged.
        self.images = images.detach().clone(memory_format=torch.channels_last)
        self.image_blocks = [self.images] if blocks == 1 else list(self.images.tensor_split(blocks))
        for part in self.image_blocks:
            part.requires_grad_()
        self.texts = texts.detach().clone().requires_grad_()
        extra = extra or {}
        self.extra = {name: value.detach().clone().requires_grad_() for name, (value, _) in extra.items()}
        self.kept: dict[str, Tensor] = {}
        lrs = [*[image_lr] * blocks, text_lr, *(lr for _, lr in extra.values())]
        self._lrs, self._momentum = dict(zip(self._learnt(), lrs, strict=True)), momentum
        self._speed = 0.0  # no velocity of the optimiser is above this
        groups = [{"params": [value], "lr": self._lrs[name]} for name, value in self._learnt().items()]
        self._adam = adam
        self._optimiser: torch.optim.Optimizer
        if adam:
            self._optimiser = torch.optim.Adam(groups, betas=(momentum, ADAM_BETA))
        else:
            self._optimiser = torch.optim.SGD(groups, momentum=momentum)

    def scale_lrs(self, factor: float) -> None:
        """From now on every step size is `factor` times what it was given as."""
        for group, lr in zip(self._optimiser.param_groups, self._lrs.values(), strict=True):
            group["lr"] = factor * lr

    def _learnt(self) -> dict[str, Tensor]:
        parts = {f"images.{number}": part for number, part in enumerate(self.image_blocks)}
        images = parts if len(parts) > 1 else {"images": self.images}
        return {**images, "texts": self.texts, **self.extra}

    def values(self) -> dict[str, Tensor]:
        """All that is learnt, by name, without gradients; not a copy."""
        learnt = {"images": self.images, "texts": self.texts, **self.extra}
        return {name: value.detach() for name, value in learnt.items()}

    def pixels(self, device: torch.device, block: int = 0) -> Tensor:
        """The images of a block where the networks are."""
        return self.image_blocks[block].to(device)

    def update(self, loss: Tensor, clip: float) -> None:
        """One step down the gradient of `loss`, whose norm over all that is learnt is clipped to `clip`."""
        loss.backward()
        self.step(loss.item(), clip)

    def step(self, loss: float, clip: float) -> None:
        """One step down the gradients that are there already; `loss` is what they are the gradient of."""
        norm = torch.nn.utils.clip_grad_norm_(list(self._learnt().values()), clip)
        if not (math.isfinite(loss) and torch.isfinite(norm)):
            self._optimiser.zero_grad(set_to_none=True)
            raise Diverged(f"the loss was {loss:.3g} and the norm of its gradient {norm.item():.3g}")
        self._speed = self._adam_speed if self._adam else self._momentum * self._speed + min(norm.item(), clip)
        before = self.state() if self._may_explode() else None
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)  # now, not before the next backward: the forward needs the room
        if before is not None and not (largest := self._largest()) < EXPLODED:
            self.load_state(before)
            raise Diverged(f"a learnt value would have become {largest:.3g}")

    @property
    def _adam_speed(self) -> float:
        """No step of Adam is longer than this times its step size (Cauchy-Schwarz on its two sums of gradients)."""
        ratio = self._momentum**2 / ADAM_BETA
        if ratio >= 1:
            return math.inf
        return max(1.0, (1 - self._momentum) / math.sqrt((1 - ADAM_BETA) * (1 - ratio)))

    def _largest(self) -> float:
        """The largest absolute value of all that is learnt."""
        return max(_largest(value) for value in self.values().values())

    def _may_explode(self) -> bool:
        """Whether the next step could lead too far. Nearly always not, and then no copy is made to go back to."""
        return not self._largest() + max(self._lrs.values()) * self._speed < EXPLODED

    def state(self) -> dict[str, Tensor]:
        """Everything that the next step depends on, as a copy."""
        tensors = {name: value.clone() for name, value in self.values().items()}
        tensors.update({f"kept.{name}": value.clone() for name, value in self.kept.items()})
        for name, parameter in self._learnt().items():
            for slot, value in self._optimiser.state[parameter].items():
                if value is not None:
                    tensors[f"{slot}.{name}"] = value.clone()
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `state` gave."""
        for name, value in self.values().items():
            value.copy_(tensors[name])
        for name, value in self.kept.items():
            value.copy_(tensors[f"kept.{name}"])
        for name, parameter in self._learnt().items():
            slots = {slot: f"{slot}.{name}" for slot in SLOTS if f"{slot}.{name}" in tensors}
            self._optimiser.state[parameter] = {slot: _as_kept(tensors[key], parameter) for slot, key in slots.items()}
        velocities = (_largest(value) for name, value in tensors.items() if name.startswith("momentum_buffer."))
        self._speed = max(velocities, default=0.0)


def _as_kept(value: Tensor, parameter: Tensor) -> Tensor:
    """A copy of what an optimiser keeps, in its parameter's memory layout; Adam's count of steps has no layout."""
    return torch.empty_like(parameter.detach()).copy_(value) if value.shape == parameter.shape else value.clone()


def _largest(values: Tensor) -> float:
    """The largest absolute value."""
    return float(torch.linalg.vector_norm(values, ord=torch.inf))
