"""One distillation from start to saved set: a method, a budget, a run folder."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path
from typing import Any

from pairstill.data.augmentation import dsa
from pairstill.distillation.contract import Context, Method, config_under_new_names
from pairstill.errors import PairstillError
from pairstill.experts.bank import Bank
from pairstill.features.encoded_dataset import EncodedDataset
from pairstill.features.subset_selection import check_count
from pairstill.runtime.files import held_alone
from pairstill.runtime.memory import peak_mib
from pairstill.runtime.process_group import broadcast_from_first, process_group, rank_folder
from pairstill.runtime.run_folder import Run
from pairstill.runtime.seeds import derive
from pairstill.sets.distilled_set import DistilledSet, load
from pairstill.training.protocols import Protocol
from pairstill.training.recall import Recall
from pairstill.training.student_training import Candidate, as_training_pairs, learnt_recipe, train_student
from pairstill.training.training_loop import TrainingDiverged
from pairstill.training.training_recipe import Recipe


def distill(
    encoded: EncodedDataset,
    out: Path,
    method: Method,
    pairs: int,
    protocol: Protocol,
    bank: Bank | None = None,
    settings: Any = None,
    seed: int = 0,
    resume: bool = False,
    student: Recipe | None = None,
) -> DistilledSet:
    """Make `pairs` synthetic pairs with `method` and save them in `out`; with `resume`, go on where a run stopped.

    Args:
        encoded: The dataset through its towers.
        out: Folder of the set; its run is kept in `out/run`.
        method: How to distil.
        pairs: How many pairs to make.
        protocol: Decides on which split, if any, the iteration is chosen.
        bank: Experts, for methods that need them.
        settings: An instance of the method's settings class; its defaults when None.
        seed: The one source of randomness.
        resume: Continue the run in `out`, or return its result if it is finished.
        student: How students are trained, in the inner loop and where their recall chooses an iteration; as the
            protocol says when None.
    """
    protocol.check(encoded.towers)
    student = student or protocol.student_recipe(encoded.towers)
    check_count(pairs, len(encoded.dataset.splits["train"]))
    settings = settings if settings is not None else method.settings()
    if method.needs_bank and bank is None:
        raise PairstillError(f"method '{method.name}' needs experts: give --bank, made by `pairstill experts`.")
    if bank is not None:
        bank.check(encoded.identity(), encoded.dataset.fingerprint)
    config = {
        "method": method.name,
        "settings": dataclasses.asdict(settings),
        "pairs": pairs,
        "protocol": protocol.name,
        "student": dataclasses.asdict(student),
        "seed": seed,
        "towers": encoded.identity(),
        "dataset": encoded.dataset.fingerprint,
        "bank": bank.fingerprint() if bank and method.needs_bank else None,
        **({"precision": "mixed"} if encoded.passes.precision == "mixed" else {}),
        **({"extra_encoders": other} if (other := encoded.others(method.extra_encoders(settings))) else {}),
    }
    if (out / "distilled.json").exists() and not (out / "run" / "run.json").exists():
        raise PairstillError(f"{out} already holds a distilled set that was not made here. Choose another --out.")
    with process_group(encoded.device), rank_folder(out) as folder, held_alone(folder / "run"):
        run = Run(folder / "run", config, resume, lambda written: config_under_new_names(written, method.settings))
        if (out / "distilled.json").exists():
            return load(out)
        score = _selection_score(encoded, protocol, student, seed)
        context = Context(method.name, encoded, pairs, seed, settings, run, bank, score, student)
        distilled = method.fit(encoded.split("train"), context)
        distilled.save(folder)
        run.event("done", pairs=len(distilled), peak_mib=peak_mib())
        return distilled


def _selection_score(encoded: EncodedDataset, protocol: Protocol, recipe: Recipe, seed: int) -> Any:
    """A function that scores candidate pairs on the protocol's split, or None where the last iteration is taken."""
    if protocol.select_on == "last":
        return None
    split = encoded.split(protocol.select_on)
    count, recipe = protocol.selection(encoded.towers, recipe)

    def score(candidate: Candidate) -> Recall:
        return broadcast_from_first(lambda: found(candidate))  # type: ignore[no-any-return]

    def found(candidate: Candidate) -> Recall:
        pairs = as_training_pairs(encoded, candidate, dsa if protocol.augment else None)
        learnt = learnt_recipe(recipe, candidate.recipe)
        seeds = (derive(seed, "selection", number) for number in range(count))
        try:
            recalls = [train_student(encoded, pairs, split, student, learnt).last for student in seeds]
        except TrainingDiverged:  # with step sizes that were learnt it may: a bad candidate, not the end
            return Recall(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        fields = [field.name for field in dataclasses.fields(Recall)]
        return Recall(**{name: statistics.fmean(getattr(recall, name) for recall in recalls) for name in fields})

    return score
