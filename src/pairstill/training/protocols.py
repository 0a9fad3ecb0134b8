"""Protocols: what is trained and how a figure is chosen decides the figure, so each way has a name."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from pairstill.errors import PairstillError, unknown
from pairstill.towers.two_tower import Towers
from pairstill.training.training_recipe import FULL_STUDENT_RECIPE, STUDENT_RECIPE, Recipe

SHARE_OF_EPOCHS = 0.4
"""Of a student's epochs, those of one that chooses an iteration in `full`."""


@dataclass(frozen=True)
class Protocol:
    """One way to turn a distilled set into a figure.

    Attributes:
        select_on: The split on which the distillation iteration is chosen; `last` takes the last iteration.
        student: Which of a student's epochs is reported: its last, or the best of 11 evaluations on test.
        augment: Whether students in towers `full` train with DSA.
        towers: The towers that the protocol is about, or None for any.
    """

    name: str
    summary: str
    select_on: Literal["val", "test", "last"]
    student: Literal["last", "best-of-11"]
    augment: bool
    towers: Literal["full"] | None = None

    def student_recipe(self, towers: Towers) -> Recipe:
        """How its students are trained by default: as published, but for ours in `full`."""
        return FULL_STUDENT_RECIPE if towers.train == "full" and self.towers is None else STUDENT_RECIPE

    def selection(self, towers: Towers, recipe: Recipe) -> tuple[int, Recipe]:
        """How many students are behind each score by which an iteration is chosen, and how they train.

        The figure itself is taken with others. In `full`, where a student costs as much as many iterations, it is one,
        and it trains for fewer epochs: a little worse, in the same order (docs/log.md).
        """
        if towers.train != "full" or self.towers is not None:
            return 2, recipe
        return 1, dataclasses.replace(recipe, epochs=math.ceil(SHARE_OF_EPOCHS * recipe.epochs))

    def key(self, towers: Towers) -> str:
        """What keys of rows have of it: its name, and a mark where it meant something else before.

        In `full` students of `clean` had DSA, those of rehearsal's inner loop trained no layer of the backbone, and
        two students of all epochs chose an iteration.
        """
        return f"{self.name}, third" if towers.train == "full" and self.towers is None else self.name

    def check(self, towers: Towers) -> None:
        """Refuse towers that the protocol is not about."""
        if self.towers and towers.train != self.towers:
            raise PairstillError(
                f"protocol '{self.name}' trains the image backbone, and these towers train only heads. "
                "Use --protocol clean, or prepare the data with --towers.train full."
            )


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol("clean", "iteration chosen on val, test read once; no leak", "val", "last", augment=False),
        Protocol(
            "mdm",
            "the paper's: iteration chosen on test, last epoch, DSA",
            "test",
            "last",
            augment=True,
            towers="full",
        ),
        Protocol(
            "lors",
            "LoRS': best of 11 evaluations on test",
            "test",
            "best-of-11",
            augment=False,
            towers="full",
        ),
    )
}


def protocol_named(name: str) -> Protocol:
    """The preset of that name."""
    if name not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]
