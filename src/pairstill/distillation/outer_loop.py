"""The outer loop around every method that optimises: progress, checks, checkpoints, Ctrl-C and divergence."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pairstill.distillation.contract import Context
from pairstill.distillation.synthetic_pairs import Diverged, SyntheticPairs
from pairstill.errors import PairstillError
from pairstill.runtime.progress import console, progress
from pairstill.runtime.run_folder import Interrupted
from pairstill.training.student_training import Candidate

SECONDS_BETWEEN_CHECKPOINTS = 20.0
WORK_PER_SAVING = 100.0
"""A checkpoint waits until this many times the seconds that the last one took have passed: saving costs 1 % at most."""

Step = Callable[[SyntheticPairs, int], dict[str, float]]
"""`step(synthetic, iteration)` updates the pairs once and returns the loss and its terms."""


def plain(tensors: Mapping[str, Tensor]) -> Candidate:
    """Pairs that students train on as they are."""
    return Candidate(tensors["images"], tensors["texts"])


@dataclass
class ChosenIterate:
    """What to keep, by name: that with the best recall where a protocol chooses by one, else the last."""

    tensors: dict[str, Tensor]
    iteration: int = 0
    recall: float = -math.inf
    checks: list[int] = field(default_factory=list)

    @property
    def images(self) -> Tensor:
        """The chosen pixels."""
        return self.tensors["images"]

    @property
    def texts(self) -> Tensor:
        """The chosen text embeddings."""
        return self.tensors["texts"]

    def checks_since(self) -> int:
        """How many checks in a row were no better."""
        return sum(iteration > self.iteration for iteration in self.checks)

    def provenance(self) -> dict[str, Any]:
        """For the set's own record."""
        return {"iteration": self.iteration, "selection_recall": self.recall if self.checks else None}


def optimise(
    context: Context,
    synthetic: SyntheticPairs,
    step: Step,
    iterations: int,
    check_every: int,
    as_candidate: Callable[[Mapping[str, Tensor]], Candidate] = plain,
    advice: str = "Lower --settings.image-lr and --settings.text-lr",
    patience: int = 0,
) -> ChosenIterate:
    """Run `step` until `iterations`, from where the run folder's checkpoint stands.

    It ends before where the last `patience` checks were no better than one before them; 0 goes on to the end.

    `as_candidate` makes what students train on out of the tensors that are optimised; `advice` is for a person whose
    pairs diverge.
    """
    chosen, done = _restore(context, synthetic)
    if done == 0:
        context.run.event("plan", iterations=iterations)  # a method may do more than it was asked for

    def check() -> None:
        if done % check_every == 0 or done == iterations:
            _check(context, synthetic, chosen, done, as_candidate)

    saved_at, wait = time.monotonic(), SECONDS_BETWEEN_CHECKPOINTS
    with (
        context.run.interruptible(),
        progress(f"{context.method}, {context.count} pairs", iterations, done) as advance,
    ):
        check()
        while done < iterations and not 0 < patience <= chosen.checks_since():
            terms = _guarded(context, synthetic, chosen, step, done, advice)
            done += 1
            context.run.event("step", iteration=done, **terms)
            check()
            if context.run.stopping or time.monotonic() - saved_at > wait:
                begin = time.monotonic()
                _save(context, synthetic, chosen, done)
                saved_at = time.monotonic()
                wait = max(SECONDS_BETWEEN_CHECKPOINTS, WORK_PER_SAVING * (saved_at - begin))
            if context.run.stopping and done < iterations:
                raise Interrupted(f"stopped at iteration {done} of {iterations}; everything so far is kept.")
            best = f", best recall {chosen.recall:.1f} at {chosen.iteration}" if chosen.checks else ""
            advance(1, note=f"loss {terms['loss']:.3f}{best}")
    if done < iterations:
        console.print(f"ended at iteration {done}: the last {patience} checks were no better than {chosen.iteration}'s")
    if not chosen.checks:
        chosen.tensors, chosen.iteration = synthetic.values(), done
    _save(context, synthetic, chosen, done)
    return chosen


def _guarded(
    context: Context, synthetic: SyntheticPairs, chosen: ChosenIterate, step: Step, done: int, advice: str
) -> dict[str, float]:
    try:
        return step(synthetic, done)
    except Diverged as error:
        _save(context, synthetic, chosen, done)
        raise PairstillError(
            f"the distillation diverged in iteration {done + 1}: {error}. The state after iteration {done} is kept in "
            f"{context.run.folder}. {advice}, and start in another folder."
        ) from None


def _check(
    context: Context,
    synthetic: SyntheticPairs,
    chosen: ChosenIterate,
    done: int,
    as_candidate: Callable[[Mapping[str, Tensor]], Candidate],
) -> None:
    """Where the protocol chooses an iteration, score the pairs and keep them if they are the best so far."""
    if context.score is None or done in chosen.checks:
        return
    recall = context.score(as_candidate(synthetic.values()))
    context.run.event("check", iteration=done, **recall.to_dict())
    chosen.checks.append(done)
    if recall.mean > chosen.recall:
        chosen.tensors = {name: value.clone() for name, value in synthetic.values().items()}
        chosen.iteration, chosen.recall = done, recall.mean


def _save(context: Context, synthetic: SyntheticPairs, chosen: ChosenIterate, done: int) -> None:
    tensors = {**synthetic.state(), **{f"chosen.{name}": value for name, value in chosen.tensors.items()}}
    state = {"done": done, "iteration": chosen.iteration, "recall": chosen.recall, "checks": chosen.checks}
    context.run.save_checkpoint(tensors, state)


def _restore(context: Context, synthetic: SyntheticPairs) -> tuple[ChosenIterate, int]:
    saved = context.run.load_checkpoint()
    if saved is None:
        return ChosenIterate({name: value.clone() for name, value in synthetic.values().items()}), 0
    tensors, state = saved
    synthetic.load_state(tensors)
    chosen = ChosenIterate(
        {name: tensors[f"chosen.{name}"] for name in synthetic.values()},
        state["iteration"],
        state["recall"],
        state["checks"],
    )
    return chosen, int(state["done"])
