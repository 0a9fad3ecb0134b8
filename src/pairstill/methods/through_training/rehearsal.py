"""Rehearsal: the gradient of real retrieval through the training of fresh students.

Each iteration of the outer loop draws a fresh student (two small heads on frozen features) and trains it on the
synthetic pairs with the students' own optimiser for some epochs: the inner loop. Pixels and text embeddings then move
down the exact gradient of the outer loss,

    InfoNCE of the trained student on a large batch of real pairs

through all of that training. Frozen backbones make this cheap: the inner loop runs on features, and the backbone is
passed at most once forward and once backward, whatever the number of students and steps. No experts are needed.

Images that were optimised for one network say less to another. So the student of every other iteration trains on the
initial images: texts go with both, what is added to an image and what everyone sees in it. Or students have several
image encoders, one in each iteration.

The images of a large set are updated in blocks: an iteration moves all texts and one block of the images, and the
others take part with the features of their last update. A pass of all images through the backbone would cost more than
an inner loop, so this buys more students.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from pairstill.distillation.contract import Context, Method, finished
from pairstill.distillation.diagnostics import SHOWN_REAL_PAIRS, pair_diagnostics
from pairstill.distillation.functional_student import FunctionalStudent, StudentData, draw_batches
from pairstill.distillation.initial_pairs import initial_pairs
from pairstill.distillation.outer_loop import ChosenIterate, optimise
from pairstill.distillation.setting_checks import check_settings
from pairstill.distillation.student_encoder import RealPairSampler, StudentEncoder
from pairstill.distillation.synthetic_pairs import SyntheticPairs
from pairstill.distillation.unrolled_dual_form import backward_through_dual_form
from pairstill.distillation.unrolled_training import OuterLoss, SgdSettings
from pairstill.errors import PairstillError
from pairstill.features.encoded_dataset import EncodedSplit
from pairstill.features.training_pairs import TensorInputs, TrainingPairs
from pairstill.runtime.files import write_json
from pairstill.runtime.row_matrix import SAMPLED_ROWS, sample
from pairstill.runtime.seeds import derive, generator
from pairstill.sets.distilled_set import DistilledSet
from pairstill.sets.initial_record import read_initial_pairs
from pairstill.sets.run_record import DIAGNOSTICS
from pairstill.towers.two_tower import TwoTower
from pairstill.training.losses import TEMPERATURE, info_nce
from pairstill.training.training_loop import TrainingDiverged, train
from pairstill.training.training_recipe import Recipe

LAST_LR = 0.02
"""What is left of a step size at the end of its cosine."""

ADVICE = "Lower --settings.student-lr, or --settings.image-lr and --settings.text-lr"
"""To whoever sees it diverge: most likely in an inner loop."""


@dataclass(frozen=True)
class Settings:
    """Settings.

    Args:
        iterations: Updates of the synthetic pairs. Where image blocks, image encoders and initial images alternate in
            k kinds of iterations, sqrt(k) times as many: 226 by default.
        init: Where the pairs start.
        mean_texts: Whether a text starts at the mean of the captions nearest to it, instead of at its own.
        students: Students in an iteration; their outer losses are averaged.
        inner_epochs: Epochs of the longest inner loop, by the number of pairs seen: its batches are all full, and the
            rest of an order that fills no batch is left out.
        min_inner_epochs: Epochs of the shortest inner loop, at most as many. The length is drawn, because students
            that train for longer than any inner loop pass their best.
        student_width: Width of the students' embeddings in towers `heads`, that of the towers by default; narrow
            students are faster and teach less.
        trained_layers: Last layers of the backbone that students train in regime `full`, at least; those before them
            are frozen in the inner loop, and 0 freezes all.
        student_lr: Step size of the students; like all of their training, that of evaluated students by default.
        student_momentum: Their momentum.
        real_batch: Real pairs in an outer loss.
        views: Other views of a real image (mirrored, then random crops) that an outer loss may take instead of it.
        images_per_step: Images that an iteration updates, at most; a larger set is updated in blocks.
        extra_encoders: Image encoders that students have besides that of the towers, in turn: images that are
            optimised for several networks say more to others too.
        alternate_initial_images: Whether the students of every other iteration train on the initial images, so that
            texts also serve networks that do not see what is added to an image; not where texts stay or images begin
            as noise, nor with `extra_encoders`, which does as much and more.
        image_lr: Adam's step size for pixels; with 0 the images stay as they are.
        text_lr: Adam's step size for text embeddings, in standard deviations of the real ones; with 0 they stay as
            they are: without `mean_texts` each is a real caption then, which people and any other text encoder can
            read.
        momentum: Adam's first beta.
        check_every: Iterations between two scores on the split that the protocol chooses by.
        patience: Checks in a row that may be no better before it ends; 0 goes on to the last iteration.
    """

    iterations: int = 160
    init: Literal["kmeans", "kmeans-image", "kmeans-text", "random", "herding", "k-center", "noise"] = "kmeans"
    mean_texts: bool = field(default=True, metadata={"was": "average"})
    students: int = 1
    inner_epochs: int = field(default=40, metadata={"was": "passes"})
    min_inner_epochs: int = field(default=10, metadata={"was": "least_passes"})
    student_width: int | None = field(default=None, metadata={"was": "width"})
    trained_layers: int = field(default=1, metadata={"added": True})
    student_lr: float | None = None
    student_momentum: float | None = None
    real_batch: int = 2048
    views: int = 1
    images_per_step: int = field(default=256, metadata={"was": "at_once"})
    extra_encoders: tuple[str, ...] = field(default=(), metadata={"was": "also"})
    alternate_initial_images: bool = field(default=True, metadata={"was": "still"})
    image_lr: float = 0.01
    text_lr: float = 0.03
    momentum: float = 0.9
    check_every: int = 80
    patience: int = field(default=0, metadata={"added": True})

    def __post_init__(self) -> None:
        counts = ("iterations", "students", "inner_epochs", "min_inner_epochs", "images_per_step", "check_every")
        least = {**dict.fromkeys(counts, 1), "student_width": 1, "views": 0, "real_batch": 2, "trained_layers": 0}
        check_settings(self, {**least, "patience": 0, "image_lr": 0, "text_lr": 0}, ("student_lr",))
        if self.image_lr == self.text_lr == 0:
            raise PairstillError("settings.image_lr and settings.text_lr are both 0: nothing would be learnt.")

    @property
    def image_kinds(self) -> tuple[bool, ...]:
        """Whether an iteration's students see the images as they are now; False is as they began."""
        if self.image_lr == 0:
            return (False,)
        alternate = self.alternate_initial_images and self.text_lr and not self.extra_encoders and self.init != "noise"
        return (True, False) if alternate else (True,)

    def inner_recipe(self, evaluated: Recipe) -> Recipe:
        """How a student of the inner loop trains, evaluated students training like this."""
        lr, momentum = self.student_lr, self.student_momentum
        recipe = evaluated if lr is None else replace(evaluated, lr=lr, text_lr=lr)
        return recipe if momentum is None else replace(recipe, momentum=momentum)


def fit(pairs: EncodedSplit, context: Context) -> DistilledSet:
    """Distil `pairs` into `context.count` synthetic pairs."""
    settings: Settings = context.settings
    device = torch.device(context.encoded.device)
    recipe = settings.inner_recipe(context.student)
    lrs = [torch.tensor(lr, device=device) for lr in (recipe.lr, recipe.text_lr or recipe.lr)]
    encoders = _student_encoders(pairs, context)
    synthetic = _initial_synthetic_pairs(pairs, context, encoders)
    initial = {name: features.to(device, copy=True) for name, features in synthetic.kept.items()}
    kinds = [(name, moved) for name in encoders for moved in settings.image_kinds]
    blocks = torch.arange(context.count).tensor_split(len(synthetic.image_blocks))
    iterations = round(settings.iterations * math.sqrt(len(blocks) * len(kinds)))

    def step(synthetic: SyntheticPairs, iteration: int) -> dict[str, float]:
        synthetic.scale_lrs(cosine(iteration, iterations))
        (name, moved), block = kinds[iteration % len(kinds)], iteration // len(kinds) % len(blocks)
        moving = encoders[name].features(synthetic.pixels(device, block)) if moved else None
        features = initial[name]
        if moving is not None:
            features = synthetic.kept[name].index_copy_(0, blocks[block], moving.detach().cpu())
        inputs = features.detach().to(device).requires_grad_(moved)
        texts = synthetic.texts.detach().to(device).requires_grad_()
        data = StudentData(inputs, texts, *lrs)
        losses = [_inner_loop(encoders[name], context, recipe, data, iteration, n) for n in range(settings.students)]
        loss = math.fsum(losses) / settings.students
        assert texts.grad is not None
        if moving is not None:
            assert inputs.grad is not None
            moving.backward(inputs.grad[blocks[block].to(device)] / settings.students)
        synthetic.texts.grad = (texts.grad / settings.students).to(synthetic.texts.device)
        synthetic.step(loss, math.inf)
        return {"loss": loss}

    chosen = optimise(
        context, synthetic, step, iterations, settings.check_every, advice=ADVICE, patience=settings.patience
    )
    with contextlib.suppress(TrainingDiverged):  # diagnostics are worth no set
        _write_diagnostics(pairs, context, encoders["features"], chosen)
    others = (encoder.fingerprint for encoder in list(encoders.values())[1:])
    extra = dict(zip(settings.extra_encoders, others, strict=True))
    more: dict[str, Any] = {"extra_encoders": extra} if extra else {}
    return finished(pairs, context, chosen.images, chosen.texts, chosen=chosen.provenance(), **more)


def _student_encoders(pairs: EncodedSplit, context: Context) -> dict[str, StudentEncoder]:
    """The image encoders that students have, by the name under which the features of the images are kept."""
    settings: Settings = context.settings
    own = context.encoded
    views, layers = settings.views, settings.trained_layers
    encoders = {"features": StudentEncoder(own, pairs, views, own.image_encoder, layers)}
    for name in settings.extra_encoders:
        other = own.under(name)
        train_split = other.split("train")
        encoders[f"features.{name}"] = StudentEncoder(other, train_split, views, own.image_encoder, layers)
    return encoders


def _initial_synthetic_pairs(
    pairs: EncodedSplit, context: Context, encoders: Mapping[str, StudentEncoder]
) -> SyntheticPairs:
    """The pairs to begin with, and the features of their images under each encoder."""
    settings: Settings = context.settings
    images, texts = initial_pairs(pairs, context, settings.init, settings.mean_texts)
    text_lr = settings.text_lr * sample(pairs.pairs.texts, SAMPLED_ROWS, context.seed).std().item()
    blocks = math.ceil(context.count / settings.images_per_step) if settings.image_lr else 1
    synthetic = SyntheticPairs(images, texts, settings.image_lr, text_lr, settings.momentum, adam=True, blocks=blocks)
    with torch.no_grad():
        pixels = synthetic.images.detach().to(context.encoded.device)
        synthetic.kept.update({name: encoder.features(pixels).cpu() for name, encoder in encoders.items()})
    return synthetic


def cosine(done: int, total: int) -> float:
    """From 1 at the first iteration to `LAST_LR` at the end."""
    return LAST_LR + (1 - LAST_LR) * (1 + math.cos(math.pi * done / total)) / 2


def _inner_loop(
    encoder: StudentEncoder, context: Context, recipe: Recipe, data: StudentData, iteration: int, number: int
) -> float:
    """One student's training and its outer loss; the gradients are added to those of `data`."""
    settings: Settings = context.settings
    place = ("rehearsal", iteration, number)
    random = generator(context.seed, *place)
    model = encoder.fresh_student(settings.student_width, derive(context.seed, *place, "student"))
    first = {name: value.detach() for name, value in model.named_parameters()}
    size = min(recipe.batch_size, context.count)
    least = min(settings.min_inner_epochs, settings.inner_epochs)
    epochs = int(torch.randint(least, settings.inner_epochs + 1, (), generator=random))
    steps = math.ceil(epochs * context.count / size)
    batches = draw_batches(context.count, size, steps, random)
    sgd = SgdSettings(recipe.momentum, recipe.weight_decay)
    student = FunctionalStudent(model, derive(context.seed, *place, "dropout"), recipe.temperature)
    outer_loss = outer_loss_on(model, *encoder.real.draw(settings.real_batch, random), recipe.temperature)
    return backward_through_dual_form(student, first, data, batches, sgd, outer_loss).item()


def _write_diagnostics(pairs: EncodedSplit, context: Context, encoder: StudentEncoder, chosen: ChosenIterate) -> None:
    """Write cosines of real, initial and distilled pairs, as a student of the chosen ones embeds them."""
    own, random = context.encoded.image_encoder, generator(context.seed, "rehearsal", "anatomy")
    first = read_initial_pairs(context.run.folder)
    assert first is not None, "initial pairs are always kept"
    device, rows = context.encoded.device, torch.arange(context.count)
    with torch.no_grad():
        images = [own.normalise(first.pictures), chosen.images]
        before, after = (encoder.features(part.to(device)) for part in images)
    model = encoder.fresh_student(context.settings.student_width, derive(context.seed, "rehearsal", "anatomy"))
    train(model, TrainingPairs(TensorInputs(after), chosen.texts, torch.stack([rows, rows], 1)), context.student, 0)
    model.eval()
    with torch.no_grad():
        real = model(*RealPairSampler(pairs, encoder.encoded).draw(SHOWN_REAL_PAIRS, random))
        initial = model(before, first.texts.to(device))
        found = pair_diagnostics(real, initial, model(after, chosen.texts.to(device)))
    write_json(context.run.folder / DIAGNOSTICS, found)


def outer_loss_on(model: TwoTower, features: Tensor, texts: Tensor, temperature: float = TEMPERATURE) -> OuterLoss:
    """The InfoNCE of a student without dropout on real pairs."""

    def outer_loss(parameters: dict[str, Tensor]) -> Tensor:
        model.eval()
        images, words = torch.func.functional_call(model, parameters, (features, texts))
        model.train()
        return info_nce(images, words, temperature)

    return outer_loss


METHOD = Method(
    "rehearsal",
    "gradient of real retrieval through the training of fresh students",
    Settings,
    fit,
    extra_encoders=lambda settings: settings.extra_encoders,
)
