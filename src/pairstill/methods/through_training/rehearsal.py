"""Rehearsal: fresh students practise on the pairs, are examined on real ones, and the pairs learn from the exam.

Each iteration draws a fresh student (two small projectors on frozen features), trains it on the synthetic pairs with
the students' own optimiser for some passes, and moves pixels and text embeddings down the exact gradient of

    InfoNCE of the trained student on a large batch of real pairs

through all of its training. Frozen backbones make this cheap: the unroll runs on features, and the backbone is passed
at most once forward and once backward, whatever the number of students and steps. No experts are needed.

Pictures that were moved for one network say less to another. So in every other iteration the student sees the pictures
as they began: texts go with both, what is added to a picture and what everyone sees in it. Or students read with
several image encoders, one in each iteration.

In a large set the pictures take turns: an iteration moves all texts and some of the pictures, and the others take part
with the features of their last turn. A pass of all through the backbone would cost more than a practice, so this buys
more students.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from pairstill.distilled import DistilledSet
from pairstill.encoded import EncodedSplit
from pairstill.errors import PairstillError
from pairstill.files import write_json
from pairstill.losses import TEMPERATURE, info_nce
from pairstill.methods.anatomy import SHOWN_REAL_PAIRS, anatomy
from pairstill.methods.checks import check_settings
from pairstill.methods.contract import Context, Method, finished
from pairstill.methods.differentiable import Material, Student, draw_batches
from pairstill.methods.dual import through_dual_practice
from pairstill.methods.first_pairs import read_first_pairs
from pairstill.methods.optimise import Chosen, optimise
from pairstill.methods.practice import Exam, Inertia
from pairstill.methods.reader import Reader, RealPairs
from pairstill.methods.start import start
from pairstill.methods.synthetic import SyntheticPairs
from pairstill.rows import SAMPLED_ROWS, sample
from pairstill.seeds import derive, generator
from pairstill.towers import TwoTower
from pairstill.training import Recipe, TensorInputs, TrainingDiverged, TrainingPairs, train

LAST_LR = 0.02
"""What is left of a step size at the end of its cosine."""

ADVICE = "Lower --settings.student-lr, or --settings.image-lr and --settings.text-lr"
"""To whoever sees it diverge: most likely in a student's practice."""


@dataclass(frozen=True)
class Settings:
    """Settings.

    Args:
        iterations: Updates of the synthetic pairs; where pictures, image encoders and `still` take k turns, sqrt(k)
            times as many: 226 by default.
        init: Where the pairs start.
        average: Whether a text starts at the mean of the captions nearest to it, instead of at its own.
        students: Students that practise in an iteration; their exams are averaged.
        passes: Passes over the pairs in a student's longest practice, by the pairs that it sees: its batches are all
            full, and what is left of an order when no full one is, is passed over.
        least_passes: In its shortest, at most as many. The length is drawn, because students that train for longer than
            any that rehearsed pass their best.
        width: Width of their embeddings in towers `heads`, that of the towers by default; narrow students are faster
            and teach less.
        student_lr: Step size of a rehearsing student; like all of its training, that of the scored ones by default.
        student_momentum: Its momentum.
        real_batch: Real pairs in an exam.
        views: Other views of a real picture (mirrored, then random crops) that an exam may show instead of it.
        at_once: Pictures that move in an iteration, at most; those of a larger set take turns.
        also: Image encoders that students read with as well, in turn with that of the towers: pictures that speak to
            several networks say more to others too.
        still: Whether the students of every other iteration practise on the pictures as they began, so that texts also
            serve networks that do not see what is added to a picture; not where texts stay or pictures begin as noise,
            nor with `also`, which does as much and more.
        image_lr: Adam's step size for pixels; with 0 the pictures stay as they are.
        text_lr: Adam's step size for text embeddings, in standard deviations of the real ones; with 0 they stay as they
            are: without `average` each is a real caption then, which people and any other text encoder can read.
        momentum: Adam's first beta.
        check_every: Iterations between two scores on the split that the protocol chooses by.
    """

    iterations: int = 160
    init: Literal["kmeans", "kmeans-image", "kmeans-text", "random", "herding", "k-center", "noise"] = "kmeans"
    average: bool = True
    students: int = 1
    passes: int = 40
    least_passes: int = 10
    width: int | None = None
    student_lr: float | None = None
    student_momentum: float | None = None
    real_batch: int = 2048
    views: int = 1
    at_once: int = 256
    also: tuple[str, ...] = ()
    still: bool = True
    image_lr: float = 0.01
    text_lr: float = 0.03
    momentum: float = 0.9
    check_every: int = 80

    def __post_init__(self) -> None:
        counts = ("iterations", "students", "passes", "least_passes", "at_once", "check_every")
        least = {**dict.fromkeys(counts, 1), "width": 1, "views": 0, "real_batch": 2, "image_lr": 0, "text_lr": 0}
        check_settings(self, least, ("student_lr",))
        if self.image_lr == self.text_lr == 0:
            raise PairstillError("settings.image_lr and settings.text_lr are both 0: nothing would be learnt.")

    @property
    def sights(self) -> tuple[bool, ...]:
        """How students see the pictures, in turn: as they have become (True), or as they began."""
        if self.image_lr == 0:
            return (False,)
        alternate = self.still and self.text_lr and not self.also and self.init != "noise"
        return (True, False) if alternate else (True,)

    def practised(self, scored: Recipe) -> Recipe:
        """How a rehearsing student trains, the scored ones training like this."""
        lr, momentum = self.student_lr, self.student_momentum
        recipe = scored if lr is None else replace(scored, lr=lr, text_lr=lr)
        return recipe if momentum is None else replace(recipe, momentum=momentum)


def fit(pairs: EncodedSplit, context: Context) -> DistilledSet:
    """Distil `pairs` into `context.count` synthetic pairs."""
    settings: Settings = context.settings
    device = torch.device(context.encoded.device)
    recipe = settings.practised(context.student)
    lrs = [torch.tensor(lr, device=device) for lr in (recipe.lr, recipe.text_lr or recipe.lr)]
    readers = _readers(pairs, context)
    synthetic = _first_pairs(pairs, context, readers)
    began = {name: features.to(device, copy=True) for name, features in synthetic.kept.items()}
    sights = [(name, moved) for name in readers for moved in settings.sights]
    places = torch.arange(context.count).tensor_split(len(synthetic.turns))
    iterations = round(settings.iterations * math.sqrt(len(places) * len(sights)))

    def step(synthetic: SyntheticPairs, iteration: int) -> dict[str, float]:
        synthetic.scale_lrs(cosine(iteration, iterations))
        (name, moved), turn = sights[iteration % len(sights)], iteration // len(sights) % len(places)
        moving = readers[name].features(synthetic.pixels(device, turn)) if moved else None
        features = began[name]
        if moving is not None:
            features = synthetic.kept[name].index_copy_(0, places[turn], moving.detach().cpu())
        inputs = features.detach().to(device).requires_grad_(moved)
        texts = synthetic.texts.detach().to(device).requires_grad_()
        data = Material(inputs, texts, *lrs)
        losses = [_rehearse(readers[name], context, recipe, data, iteration, n) for n in range(settings.students)]
        loss = math.fsum(losses) / settings.students
        assert texts.grad is not None
        if moving is not None:
            assert inputs.grad is not None
            moving.backward(inputs.grad[places[turn].to(device)] / settings.students)
        synthetic.texts.grad = (texts.grad / settings.students).to(synthetic.texts.device)
        synthetic.step(loss, math.inf)
        return {"loss": loss}

    chosen = optimise(context, "rehearsal", synthetic, step, iterations, settings.check_every, advice=ADVICE)
    with contextlib.suppress(TrainingDiverged):  # a look inside is worth no set
        _look_inside(pairs, context, readers["features"], chosen)
    others = dict(zip(settings.also, (reader.fingerprint for reader in list(readers.values())[1:]), strict=True))
    also: dict[str, Any] = {"also": others} if others else {}
    return finished(pairs, context, "rehearsal", chosen.images, chosen.texts, chosen=chosen.provenance(), **also)


def _readers(pairs: EncodedSplit, context: Context) -> dict[str, Reader]:
    """The image encoders that students read with, by the name under which the features of their pictures are kept."""
    settings: Settings = context.settings
    own = context.encoded
    readers = {"features": Reader(own, pairs, settings.views, own.image_encoder)}
    for name in settings.also:
        other = own.under(name)
        readers[f"features.{name}"] = Reader(other, other.split("train"), settings.views, own.image_encoder)
    return readers


def _first_pairs(pairs: EncodedSplit, context: Context, readers: Mapping[str, Reader]) -> SyntheticPairs:
    """The pairs to begin with, and the features of their pictures under each reader."""
    settings: Settings = context.settings
    images, texts = start(pairs, context, settings.init, settings.average)
    text_lr = settings.text_lr * sample(pairs.pairs.texts, SAMPLED_ROWS, context.seed).std().item()
    turns = math.ceil(context.count / settings.at_once) if settings.image_lr else 1
    synthetic = SyntheticPairs(images, texts, settings.image_lr, text_lr, settings.momentum, adam=True, turns=turns)
    with torch.no_grad():
        pixels = synthetic.images.detach().to(context.encoded.device)
        synthetic.kept.update({name: reader.features(pixels).cpu() for name, reader in readers.items()})
    return synthetic


def cosine(done: int, total: int) -> float:
    """From 1 at the first iteration to `LAST_LR` at the end."""
    return LAST_LR + (1 - LAST_LR) * (1 + math.cos(math.pi * done / total)) / 2


def _rehearse(reader: Reader, context: Context, recipe: Recipe, data: Material, iteration: int, number: int) -> float:
    """One student's practice and exam; the gradients are added to those of `data`."""
    settings: Settings = context.settings
    place = ("rehearsal", iteration, number)
    random = generator(context.seed, *place)
    model = reader.fresh_student(settings.width, derive(context.seed, *place, "student"))
    first = {name: value.detach() for name, value in model.named_parameters()}
    size = min(recipe.batch_size, context.count)
    least = min(settings.least_passes, settings.passes)
    passes = int(torch.randint(least, settings.passes + 1, (), generator=random))
    steps = math.ceil(passes * context.count / size)
    batches = draw_batches(context.count, size, steps, random)
    inertia = Inertia(recipe.momentum, recipe.weight_decay)
    student = Student(model, derive(context.seed, *place, "dropout"), recipe.temperature)
    exam = exam_on(model, *reader.real.draw(settings.real_batch, random), recipe.temperature)
    return through_dual_practice(student, first, data, batches, inertia, exam).item()


def _look_inside(pairs: EncodedSplit, context: Context, reader: Reader, chosen: Chosen) -> None:
    """Write what a student of the chosen pairs sees in real, initial and distilled ones into the run folder."""
    encoded, random = context.encoded, generator(context.seed, "rehearsal", "anatomy")
    first = read_first_pairs(context.run.folder)
    assert first is not None, "every start keeps its first pairs"
    device, rows = encoded.device, torch.arange(context.count)
    with torch.no_grad():
        images = [encoded.image_encoder.normalise(first.pictures), chosen.images]
        before, after = (encoded.through_backbone(part.to(device)) for part in images)
    model = reader.fresh_student(context.settings.width, derive(context.seed, "rehearsal", "anatomy"))
    train(model, TrainingPairs(TensorInputs(after), chosen.texts, torch.stack([rows, rows], 1)), context.student, 0)
    model.eval()
    with torch.no_grad():
        real = model(*RealPairs(pairs, encoded).draw(SHOWN_REAL_PAIRS, random))
        found = anatomy(real, model(before, first.texts.to(device)), model(after, chosen.texts.to(device)))
    write_json(context.run.folder / "anatomy.json", found)


def exam_on(model: TwoTower, features: Tensor, texts: Tensor, temperature: float = TEMPERATURE) -> Exam:
    """The InfoNCE of a student without dropout on real pairs."""

    def exam(parameters: dict[str, Tensor]) -> Tensor:
        model.eval()
        images, words = torch.func.functional_call(model, parameters, (features, texts))
        model.train()
        return info_nce(images, words, temperature)

    return exam


METHOD = Method(
    "gradient of real retrieval through the training of fresh students",
    Settings,
    fit,
    reads=lambda settings: settings.also,
)
