"""How a model is trained: the settings of SGD, and the two sets of values that experts and students have."""

from __future__ import annotations

from dataclasses import dataclass

from pairstill.errors import PairstillError


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Args:
        epochs: Passes over the pairs.
        lr: Step size of SGD.
        text_lr: Step size of the text projector, where it is another.
        momentum: Momentum of SGD.
        weight_decay: L2 penalty.
        batch_size: Pairs in a step.
        decay: The step size is multiplied by this at half of the epochs.
        temperature: Of the loss.
        one_caption: An epoch takes each image once, with one of its captions drawn anew, instead of every pair.
    """

    epochs: int
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = 128
    decay: float = 1.0
    temperature: float = 0.07
    one_caption: bool = False
    text_lr: float | None = None

    def __post_init__(self) -> None:
        needs = {
            "epochs": (self.epochs >= 1, "at least 1"),
            "lr": (self.lr > 0, "above 0"),
            "text_lr": (self.text_lr is None or self.text_lr > 0, "above 0"),
            "momentum": (0 <= self.momentum < 1, "at least 0 and below 1"),
            "weight_decay": (self.weight_decay >= 0, "at least 0"),
            "batch_size": (self.batch_size >= 2, "at least 2"),
            "decay": (self.decay > 0, "above 0"),
            "temperature": (self.temperature > 0, "above 0"),
        }
        for name, (holds, what) in needs.items():
            if not holds:
                raise PairstillError(f"{name} of a training recipe must be {what}, not {getattr(self, name)}.")


EXPERT_RECIPE = Recipe(epochs=10)
STUDENT_RECIPE = Recipe(epochs=100, momentum=0.9, weight_decay=5e-4, decay=0.1)
