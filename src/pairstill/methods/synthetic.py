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
        # In the memory layout that convolutions like, so that neither pixels nor their gradient are ever rearranged.
        self.images = images.detach().clone(memory_format=torch.channels_last).requires_grad_()
        self.texts = texts.detach().clone().requires_grad_()
        self._lrs, self._momentum = (image_lr, text_lr), momentum
        groups = [{"params": [self.images], "lr": image_lr}, {"params": [self.texts], "lr": text_lr}]
        self._optimiser = torch.optim.SGD(groups, momentum=momentum)

    def pixels(self, device: torch.device) -> Tensor:
        """The images where the networks are."""
        return self.images.to(device)

    def update(self, loss: Tensor, clip: float) -> None:
        """One step down the gradient of `loss`, whose norm over all pairs is clipped to `clip`."""
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_([self.images, self.texts], clip)
        if not (torch.isfinite(loss) and torch.isfinite(norm)):
            self._optimiser.zero_grad(set_to_none=True)
            raise Diverged(f"the loss was {loss.item():.3g} and the norm of its gradient {norm.item():.3g}")
        before = self.state() if self._may_explode(clip) else None
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)  # now, not before the next backward: the forward needs the room
        if before is not None and not (largest := self._largest()) < EXPLODED:
            self.load_state(before)
            raise Diverged(f"a pixel or text value would have become {largest:.3g}")

    def _largest(self) -> float:
        """The largest absolute value of all pixels and text embeddings."""
        norms = [torch.linalg.vector_norm(p.detach(), ord=torch.inf) for p in (self.images, self.texts)]
        return float(max(norm.item() for norm in norms))

    def _may_explode(self, clip: float) -> bool:
        """Whether a step could be too long: with momentum m and a gradient of at most c it is at most lr * c / (1 - m).

        Nearly always it could not, and then no copy has to be made to go back to.
        """
        longest = max(self._lrs) * clip / (1 - self._momentum)
        return not self._largest() + longest < EXPLODED

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
                buffer = torch.empty_like(parameter.detach()).copy_(tensors[f"momentum.{name}"])
                self._optimiser.state[parameter]["momentum_buffer"] = buffer
            else:
                self._optimiser.state[parameter].pop("momentum_buffer", None)
