"""The contract of every method: `fit(pairs, context) -> DistilledSet`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from torch import Tensor

from pairstill.experts.bank import Bank
from pairstill.features.encoded_dataset import EncodedDataset, EncodedSplit
from pairstill.runtime.checked_fields import checked
from pairstill.runtime.old_names import under_new_names, with_added
from pairstill.runtime.run_folder import Run
from pairstill.sets.distilled_set import DistilledSet, nearest_captions
from pairstill.training.recall import Recall
from pairstill.training.student_training import Candidate
from pairstill.training.training_recipe import STUDENT_RECIPE, Recipe


@dataclass(frozen=True)
class Context:
    """All that a method may use besides the training pairs.

    Attributes:
        method: Name of the method.
        encoded: The dataset through its towers.
        count: How many pairs to make.
        seed: The one source of randomness.
        settings: An instance of the method's own settings class.
        run: The run folder, for events and checkpoints.
        bank: Experts, for methods that need them.
        score: Recall of students trained on a candidate, on the split that the protocol chooses by; None when the
            last iteration is taken.
        student: How the students are trained that will be scored.
    """

    method: str
    encoded: EncodedDataset
    count: int
    seed: int
    settings: Any
    run: Run
    bank: Bank | None = None
    score: Callable[[Candidate], Recall] | None = None
    student: Recipe = STUDENT_RECIPE

    def need_bank(self) -> Bank:
        """The bank, for a method that is registered with `needs_bank`."""
        assert self.bank is not None, "a method that needs a bank is not started without one"
        return self.bank


@dataclass(frozen=True)
class Method:
    """An entry of the registry.

    Attributes:
        name: What people call it by.
        summary: What it is, in a line.
        settings: The class of its settings.
        fit: The function that does it.
        needs_bank: Whether it reads experts.
        extra_encoders: The image encoders that it uses besides that of the towers, by its settings.
    """

    name: str
    summary: str
    settings: type
    fit: Callable[[EncodedSplit, Context], DistilledSet]
    needs_bank: bool = False
    extra_encoders: Callable[[Any], Sequence[str]] = lambda settings: ()


def settings_of(method: Method, changes: Mapping[str, Any], where: str = "") -> Any:
    """A method's settings with some changed, or an error that says where."""
    what = f"{where}: setting of {method.name}" if where else f"setting of {method.name}"
    return method.settings(**checked(method.settings, changes, what))


def config_under_new_names(config: Mapping[str, Any], settings: type) -> dict[str, Any]:
    """The config of a run that an older version may have written, by the names of this one."""
    renamed = {"also": "extra_encoders"}
    plain = {renamed.get(name, name): value for name, value in config.items()}
    written = under_new_names(settings, config.get("settings", {}))
    student = with_added(Recipe, config["student"]) if "student" in config else None
    return {**plain, "settings": with_added(settings, written), **({"student": student} if student else {})}


def finished(
    pairs: EncodedSplit,
    context: Context,
    images: Tensor,
    texts: Tensor,
    similarity: Tensor | None = None,
    **more: Any,
) -> DistilledSet:
    """Tensors to a DistilledSet with its nearest captions and its provenance.

    `more` goes into the set's info; `student` there is what of a student's recipe the method learnt.
    """
    encoded = context.encoded
    encoder = encoded.image_encoder
    info = {
        "method": context.method,
        "settings": asdict(context.settings),
        "seed": context.seed,
        "towers": encoded.identity(),
        "normalisation": {"mean": list(encoder.mean), "std": list(encoder.std)},
        "dataset": {
            "name": encoded.dataset.name,
            "fingerprint": encoded.dataset.fingerprint,
            "license": encoded.dataset.license,
            "training_images": len(pairs.images),
        },
        "pairstill": metadata.version("pairstill"),
        **more,
    }
    captions = nearest_captions(texts, pairs.pairs.texts, pairs.captions)
    return DistilledSet(images.detach().contiguous(), texts.detach().contiguous(), captions, info, similarity)
