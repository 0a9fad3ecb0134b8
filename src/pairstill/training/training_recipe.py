"""How a model is trained: the settings of SGD, and the values that experts and students have in each regime."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from pairstill.errors import PairstillError
from pairstill.towers.two_tower import Towers

Schedule = Literal["step", "cosine"]


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
        schedule: How step sizes fall: in one step at half of the epochs, or along a cosine to 0.
        decay: What a step of the schedule multiplies the step sizes by.
        temperature: Of the loss.
        one_caption: An epoch takes each image once, with one of its captions drawn anew, instead of every pair.
        augment: Whether experts and models of all pairs see real images augmented, in regime `full`; a protocol says
            whether students do.
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
    schedule: Schedule = field(default="step", metadata={"added": True})
    augment: bool = field(default=True, metadata={"added": True})

    def share_of_lr(self, epoch: float) -> float:
        """What is left of the step sizes after so many epochs, fractions included."""
        if self.schedule == "cosine":
            return (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        return self.decay if int(epoch) >= math.ceil(self.epochs / 2) else 1.0

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
            "schedule": (self.schedule in get_args(Schedule), " or ".join(get_args(Schedule))),
        }
        for name, (holds, what) in needs.items():
            if not holds:
                raise PairstillError(f"{name} of a training recipe must be {what}, not {getattr(self, name)}.")


@dataclass(frozen=True)
class RecipeChanges:  # noqa: D101
    __doc__ = f"""What differs from the recipe that a model has by default in its regime; what is left out stays.

    Args:{(Recipe.__doc__ or "").split("Args:")[-1]}"""

    epochs: int | None = None
    lr: float | None = None
    text_lr: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    batch_size: int | None = None
    decay: float | None = None
    temperature: float | None = None
    one_caption: bool | None = None
    schedule: Schedule | None = None
    augment: bool | None = None


EXPERT_RECIPE = Recipe(epochs=10)
"""As published, and in `heads`."""

STUDENT_RECIPE = Recipe(epochs=100, momentum=0.9, weight_decay=5e-4, decay=0.1)
"""As published, and in `heads`."""

FULL_EXPERT_RECIPE = Recipe(
    epochs=8, lr=0.01, text_lr=0.5, momentum=0.9, one_caption=True, schedule="cosine", augment=False
)
"""In `full`, and of models of all pairs there; chosen on validation (docs/log.md)."""

FULL_STUDENT_RECIPE = dataclasses.replace(STUDENT_RECIPE, epochs=50, lr=0.01, text_lr=0.5, schedule="cosine")
"""In `full`; chosen on validation with real pairs (docs/log.md)."""


def expert_recipe(towers: Towers) -> Recipe:
    """How experts and models of all pairs are trained by default."""
    return FULL_EXPERT_RECIPE if towers.train == "full" else EXPERT_RECIPE


def changed(recipe: Recipe, given: Recipe | RecipeChanges | None) -> Recipe:
    """A default recipe, with changes or replaced."""
    if given is None or isinstance(given, Recipe):
        return given or recipe
    values = {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    return dataclasses.replace(recipe, **{name: value for name, value in values.items() if value is not None})
