"""The loop around every distiller: progress, checks, checkpoints, Ctrl-C and divergence."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pairstill.errors import PairstillError
from pairstill.methods.contract import Context
from pairstill.methods.synthetic import Diverged, SyntheticPairs
from pairstill.progress import progress
from pairstill.run import Interrupted

SECONDS_BETWEEN_CHECKPOINTS = 20.0

Step = Callable[[SyntheticPairs, int], dict[str, float]]
"""`step(synthetic, iteration)` updates the pairs once and returns the loss and its terms."""


@dataclass
class Chosen:
    """The pairs to keep: those with the best recall where a protocol chooses by one, else the last."""

    images: Tensor
    texts: Tensor
    iteration: int = 0
    recall: float = -math.inf
    checks: list[int] = field(default_factory=list)

    def provenance(self) -> dict[str, Any]:
        """For the set's own record."""
        return {"iteration": self.iteration, "selection_recall": self.recall if self.checks else None}


def optimise(
    context: Context, label: str, synthetic: SyntheticPairs, step: Step, iterations: int, check_every: int
) -> Chosen:
    """Run `step` until `iterations`, from where the run folder's checkpoint stands."""
    chosen, done = _restore(context, synthetic)

    def check() -> None:
        if done % check_every == 0 or done == iterations:
            _check(context, synthetic, chosen, done)

    saved_at = time.monotonic()
    with (
        context.run.interruptible(),
        progress(f"{label}, {context.count} pairs", iterations, done) as advance,
    ):
        check()
        while done < iterations:
            terms = _guarded(context, synthetic, chosen, step, done)
            done += 1
            context.run.event("step", iteration=done, **terms)
            check()
            if context.run.stopping or time.monotonic() - saved_at > SECONDS_BETWEEN_CHECKPOINTS:
                _save(context, synthetic, chosen, done)
                saved_at = time.monotonic()
            if context.run.stopping and done < iterations:
                raise Interrupted(f"stopped at iteration {done} of {iterations}; everything so far is kept.")
            best = f", best recall {chosen.recall:.1f} at {chosen.iteration}" if chosen.checks else ""
            advance(1, note=f"loss {terms['loss']:.3f}{best}")
    if not chosen.checks:
        chosen.images, chosen.texts, chosen.iteration = (
            synthetic.images.detach(),
            synthetic.texts.detach(),
            done,
        )
    _save(context, synthetic, chosen, done)
    return chosen


def _guarded(context: Context, synthetic: SyntheticPairs, chosen: Chosen, step: Step, done: int) -> dict[str, float]:
    try:
        return step(synthetic, done)
    except Diverged as error:
        _save(context, synthetic, chosen, done)
        raise PairstillError(
            f"the distillation diverged in iteration {done + 1}: {error}. The state after iteration {done} is kept in "
            f"{context.run.folder}. {synthetic.advice()}, and start in another folder."
        ) from None


def _check(context: Context, synthetic: SyntheticPairs, chosen: Chosen, done: int) -> None:
    """Where the protocol chooses an iteration, score the pairs and keep them if they are the best so far."""
    if context.score is None or done in chosen.checks:
        return
    recall = context.score(synthetic.images.detach(), synthetic.texts.detach())
    context.run.event("check", iteration=done, **recall.to_dict())
    chosen.checks.append(done)
    if recall.mean > chosen.recall:
        chosen.images, chosen.texts = synthetic.images.detach().clone(), synthetic.texts.detach().clone()
        chosen.iteration, chosen.recall = done, recall.mean


def _save(context: Context, synthetic: SyntheticPairs, chosen: Chosen, done: int) -> None:
    tensors = {**synthetic.state(), "chosen.images": chosen.images, "chosen.texts": chosen.texts}
    state = {"done": done, "iteration": chosen.iteration, "recall": chosen.recall, "checks": chosen.checks}
    context.run.save_checkpoint(tensors, state)


def _restore(context: Context, synthetic: SyntheticPairs) -> tuple[Chosen, int]:
    saved = context.run.load_checkpoint()
    if saved is None:
        return Chosen(synthetic.images.detach().clone(), synthetic.texts.detach().clone()), 0
    tensors, state = saved
    synthetic.load_state(tensors)
    chosen = Chosen(
        tensors["chosen.images"],
        tensors["chosen.texts"],
        state["iteration"],
        state["recall"],
        state["checks"],
    )
    return chosen, int(state["done"])
