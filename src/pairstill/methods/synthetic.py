"""SyntheticPairs: the pixels and text embeddings that are being optimised, with their optimiser."""

from __future__ import annotations

import torch
from torch import Tensor

EXPLODED = 1e4
"""Normalised pixels and text embeddings are of order 1; a value this large means that the step sizes are wrong."""


class Diverged(Exception):
    """The loss, its gradient or the pairs left the finite world; the pairs are as they were before the step."""


class SyntheticPairs:
    """N images [N, 3, S, S] and N text embeddings [N, d_t], moved by SGD with momentum and a clipped gradient."""

    def __init__(self, images: Tensor, texts: Tensor, image_lr: float, text_lr: float, momentum: float) -> None:
        self.images = images.detach().clone().requires_grad_()
        self.texts = texts.detach().clone().requires_grad_()
        self._lrs = (image_lr, text_lr)
        groups = [{"params": [self.images], "lr": image_lr}, {"params": [self.texts], "lr": text_lr}]
        self._optimiser = torch.optim.SGD(groups, momentum=momentum)

    def pixels(self, device: torch.device) -> Tensor:
        """The images where the networks are, in the memory layout that convolutions like."""
        return self.images.to(device).contiguous(memory_format=torch.channels_last)

    def update(self, loss: Tensor, clip: float) -> None:
        """One step down the gradient of `loss`, whose norm over all pairs is clipped to `clip`."""
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_([self.images, self.texts], clip)
        if not (torch.isfinite(loss) and torch.isfinite(norm)):
            raise Diverged(f"the loss was {loss.item():.3g} and the norm of its gradient {norm.item():.3g}")
        before = self.state()
        self._optimiser.step()
        largest = max(self.images.detach().abs().max().item(), self.texts.detach().abs().max().item())
        if not largest < EXPLODED:
            self.load_state(before)
            raise Diverged(f"a pixel or text value would have become {largest:.3g}")

    def advice(self) -> str:
        """What to change when the pairs diverge."""
        return f"Lower --settings.image-lr (now {self._lrs[0]:g}) and --settings.text-lr (now {self._lrs[1]:g})"

    def state(self) -> dict[str, Tensor]:
        """Everything that the next step depends on, as a copy."""
        tensors = {"images": self.images.detach().clone(), "texts": self.texts.detach().clone()}
        for name, parameter in (("images", self.images), ("texts", self.texts)):
            buffer = self._optimiser.state[parameter].get("momentum_buffer")
            if buffer is not None:
                tensors[f"momentum.{name}"] = buffer.clone()
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `state` gave."""
        for name, parameter in (("images", self.images), ("texts", self.texts)):
            parameter.data.copy_(tensors[name])
            if f"momentum.{name}" in tensors:
                self._optimiser.state[parameter]["momentum_buffer"] = tensors[f"momentum.{name}"].clone()
            else:
                self._optimiser.state[parameter].pop("momentum_buffer", None)
