import functools
import itertools
import math
from dataclasses import replace

import pytest
import torch

from pairstill import api
from pairstill.distillation.functional_student import FunctionalStudent, StudentData
from pairstill.distillation.student_encoder import RealPairSampler, StudentEncoder
from pairstill.distillation.unrolled_training import SgdSettings, backward_through_training
from pairstill.errors import PairstillError
from pairstill.evaluation.scoring import with_nearest_captions
from pairstill.features.encoded_dataset import EncodedDataset
from pairstill.methods.through_training import rehearsal
from pairstill.methods.through_training.rehearsal import Settings, cosine, outer_loss_on
from pairstill.runtime.files import read_tensors
from pairstill.runtime.row_matrix import in_memory
from pairstill.runtime.run_folder import read_events
from pairstill.sets.initial_record import read_initial_pairs
from pairstill.training.losses import info_nce
from pairstill.training.training_loop import TrainingDiverged
from pairstill.training.training_recipe import Recipe
from tests.conftest import hidden_test_split
from tests.support.students import OTHER, two_tower

SHORT = Settings(
    iterations=30,
    check_every=30,
    inner_epochs=6,
    student_width=16,
    real_batch=64,
    alternate_initial_images=False,
    image_lr=0.03,
    text_lr=0.05,
)
distill = functools.partial(api.distill, student=Recipe(epochs=10, momentum=0.9, batch_size=16))


def test_the_outer_loss_is_taken_without_dropout_and_leaves_the_student_in_training():
    model = two_tower(dropout=0.5).train()
    features, texts = torch.randn(6, 5, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    outer_loss = outer_loss_on(model, features, texts, 0.2)
    assert outer_loss(parameters).item() == outer_loss(parameters).item()
    assert model.training
    torch.testing.assert_close(outer_loss(parameters), info_nce(*model.eval()(features, texts), 0.2))


def test_pairs_that_were_optimised_teach_new_students_better():
    """Images and texts of one hidden cause; eight random pairs are improved, and judged by students never seen."""
    random = torch.Generator().manual_seed(0)
    cause = torch.randn(200, 3, generator=random)
    features, texts = (cause @ torch.randn(3, width, generator=random) for width in (5, 4))
    pairs = [torch.randn(8, width, generator=random).requires_grad_() for width in (5, 4)]
    lr, batches, sgd = torch.tensor(0.1), [torch.arange(8)] * 10, SgdSettings(0.9)

    def rehearse(seed):
        model = two_tower(seed=seed).float()
        start = {name: value.detach() for name, value in model.named_parameters()}
        for leaf in pairs:
            leaf.grad = None
        outer_loss = outer_loss_on(model, features, texts)
        return backward_through_training(
            FunctionalStudent(model, 0), start, StudentData(*pairs, lr, lr), batches, sgd, outer_loss
        ).item()

    def judged():
        return sum(rehearse(seed) for seed in range(1000, 1005)) / 5

    before = judged()
    adam = torch.optim.Adam(pairs, lr=0.05)
    for seed in range(60):
        rehearse(seed)
        adam.step()
    assert judged() < before - 0.5


def test_the_first_step_of_a_text_is_its_step_size(heads_data, tmp_path):
    once = replace(SHORT, iterations=1, mean_texts=False)
    distill(heads_data, tmp_path / "set", "rehearsal", 6, settings=once)
    moved = read_tensors(tmp_path / "set/run/checkpoint.safetensors")["texts"]
    moved = (moved - read_initial_pairs(tmp_path / "set/run").texts).abs()
    spread = in_memory(heads_data.encoded().split("train").pairs.texts).std().item()
    assert moved.max().item() == pytest.approx(once.text_lr * spread, rel=1e-3)  # Adam's first step is all of it


def test_every_pair_steps_down_the_gradient_that_its_students_give(heads_data, tmp_path, monkeypatch):
    """Exams that want more of every number of some pairs and less of those of the others, images in two turns."""
    wanted = torch.tensor([[1.0], [1.0], [-1.0], [-1.0], [1.0], [-1.0]])

    def inner_loop(encoder, context, recipe, data, *place):
        loss = -(wanted * data.texts).sum()
        loss = loss - (wanted * data.inputs).sum()
        loss.backward()
        return loss.item()

    monkeypatch.setattr(rehearsal, "_inner_loop", inner_loop)
    settings = replace(SHORT, iterations=6, images_per_step=3)
    distill(heads_data, tmp_path / "set", "rehearsal", 6, settings=settings)
    first, last = read_initial_pairs(tmp_path / "set/run"), read_tensors(tmp_path / "set/run/checkpoint.safetensors")
    encoded = heads_data.encoded()
    with torch.no_grad():
        before = encoded.through_backbone(encoded.image_encoder.normalise(first.pictures))
        after = encoded.through_backbone(last["images"])
    assert ((wanted * (after - before)).sum(1) > 0).all()
    assert ((wanted * (last["texts"] - first.texts)) > 0).all()


def test_texts_with_a_step_size_of_zero_stay_real_captions(heads_data, tmp_path):
    """Whatever reads the nearest captions of such a set reads its very texts."""
    kept = replace(SHORT, iterations=5, check_every=5, mean_texts=False, text_lr=0)
    made = distill(heads_data, tmp_path / "set", "rehearsal", 6, settings=kept)
    encoded, first = heads_data.encoded(), read_initial_pairs(tmp_path / "set/run")
    moved = read_tensors(tmp_path / "set/run/checkpoint.safetensors")
    start = encoded.image_encoder.normalise(first.pictures)
    assert (moved["images"] - start).abs().mean() > kept.image_lr
    torch.testing.assert_close(moved["texts"], first.texts, rtol=0, atol=0)
    torch.testing.assert_close(with_nearest_captions(encoded, made).texts, made.texts, rtol=0, atol=0)


def test_images_of_a_large_set_are_updated_in_blocks(heads_data, tmp_path, monkeypatch):
    """Half of the images move in an iteration; the others' features are those of their last turn."""
    seen = []
    original = rehearsal.backward_through_dual_form

    def spy(student, start, data, *rest):
        seen.append(data.inputs.detach().clone())
        return original(student, start, data, *rest)

    monkeypatch.setattr(rehearsal, "backward_through_dual_form", spy)
    few = replace(SHORT, iterations=3, images_per_step=3)  # times the square root of two turns: 4
    made = distill(heads_data, tmp_path / "set", "rehearsal", 6, settings=few)
    moved = [((after - before).abs() > 1e-5).any(dim=1).tolist() for before, after in itertools.pairwise(seen)]
    first, second = [True] * 3 + [False] * 3, [False] * 3 + [True] * 3
    assert moved == [[False] * 6, first, second]  # what moved in an iteration is seen at the part's next turn
    assert len(made) == 6


def _seen_features(monkeypatch):
    """What students will practise on, and whether the images learn from it, in each iteration."""
    seen, original = [], rehearsal.backward_through_dual_form

    def spy(student, start, data, *rest):
        seen.append((data.inputs.detach().clone(), data.inputs.requires_grad))
        return original(student, start, data, *rest)

    monkeypatch.setattr(rehearsal, "backward_through_dual_form", spy)
    return seen


def test_every_other_student_sees_the_initial_images(heads_data, tmp_path, monkeypatch):
    seen = _seen_features(monkeypatch)
    settings = replace(SHORT, iterations=4, alternate_initial_images=True)  # times the square root of two: 6
    distill(heads_data, tmp_path / "set", "rehearsal", 6, settings=settings)
    assert [learns for _, learns in seen] == [True, False] * 3
    current, initial = [[features for features, _ in seen[first::2]] for first in (0, 1)]
    assert all(torch.equal(features, current[0]) for features in initial)
    assert all((after - before).abs().max() > 1e-5 for before, after in itertools.pairwise(current))


def test_every_picture_moves_where_turns_and_still_ones_alternate(heads_data, tmp_path):
    settings = replace(
        SHORT, iterations=3, images_per_step=3, alternate_initial_images=True
    )  # times the square root of four: 6
    distill(heads_data, tmp_path / "set", "rehearsal", 6, settings=settings)
    moved = read_tensors(tmp_path / "set/run/checkpoint.safetensors")["images"]
    start = heads_data.encoded().image_encoder.normalise(read_initial_pairs(tmp_path / "set/run").pictures)
    assert ((moved - start).abs().flatten(1).mean(dim=1) > settings.image_lr / 2).all()


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({}, (True, False)),
        ({"alternate_initial_images": False}, (True,)),
        ({"text_lr": 0}, (True,)),
        ({"init": "noise"}, (True,)),
        ({"extra_encoders": ("another",)}, (True,)),
        ({"image_lr": 0}, (False,)),
    ],
)
def test_initial_images_alternate_only_where_images_move_and_texts_learn(change, kinds):
    assert Settings(**change).image_kinds == kinds


def test_pictures_with_a_step_size_of_zero_stay_and_pass_the_backbone_once(heads_data, tmp_path, monkeypatch):
    seen, passed, original = _seen_features(monkeypatch), [], StudentEncoder.features
    monkeypatch.setattr(
        StudentEncoder, "features", lambda self, pixels: passed.append(len(pixels)) or original(self, pixels)
    )
    settings = replace(SHORT, iterations=4, image_lr=0, images_per_step=3)  # images that stay take no turns
    distill(heads_data, tmp_path / "set", "rehearsal", 6, settings=settings)
    assert passed == [6, 6, 6]  # those after the first are for the diagnostics at the end
    assert len(seen) == 4
    kept = read_tensors(tmp_path / "set/run/checkpoint.safetensors")
    first = read_initial_pairs(tmp_path / "set/run")
    start = heads_data.encoded().image_encoder.normalise(first.pictures)
    torch.testing.assert_close(kept["images"], start, rtol=0, atol=0.02)  # those to show have 8 bits
    assert (kept["texts"] - first.texts).abs().max() > 1e-3


def test_more_students_average_their_outer_losses(heads_data, tmp_path, monkeypatch):
    seen = []
    original = rehearsal.backward_through_dual_form

    def spy(student, start, data, batches, sgd, outer_loss):
        loss = original(student, start, data, batches, sgd, outer_loss)
        seen.append((loss.item(), start["text_head.projection.weight"].clone()))
        return loss

    monkeypatch.setattr(rehearsal, "backward_through_dual_form", spy)
    distill(heads_data, tmp_path / "set", "rehearsal", 6, settings=replace(SHORT, iterations=1, students=3))
    assert len(seen) == 3
    assert not torch.equal(seen[0][1], seen[1][1])  # each a fresh one
    step = next(event for event in read_events(tmp_path / "set/run") if event["kind"] == "step")
    assert step["loss"] == pytest.approx(sum(loss for loss, _ in seen) / 3)


@pytest.mark.parametrize(("batch_size", "sizes"), [(128, [6] * 5), (4, [4] * 8)])
def test_an_inner_loop_has_as_many_epochs_whatever_the_number_of_pairs(
    heads_data, tmp_path, monkeypatch, batch_size, sizes
):
    seen = []
    original = rehearsal.backward_through_dual_form

    def spy(student, start, data, batches, sgd, outer_loss):
        seen.append([len(rows) for rows in batches])
        return original(student, start, data, batches, sgd, outer_loss)

    monkeypatch.setattr(rehearsal, "backward_through_dual_form", spy)
    settings, recipe = replace(SHORT, iterations=1, inner_epochs=5), Recipe(epochs=1, batch_size=batch_size)
    distill(heads_data, tmp_path / "set", "rehearsal", 6, settings=settings, student=recipe)
    assert seen == [sizes]  # 5 times 6 pairs, in batches of 6 or of 4


@pytest.mark.parametrize("changed", [{}, {"student_lr": 0.7, "student_momentum": 0.0}])
def test_inner_students_train_as_evaluated_ones_but_for_what_is_set(heads_data, tmp_path, monkeypatch, changed):
    evaluated = Recipe(epochs=2, lr=0.3, text_lr=0.2, momentum=0.5, weight_decay=0.01, batch_size=4, temperature=0.2)
    seen, trained, temperatures = [], [], []
    original, train, original_loss = rehearsal.backward_through_dual_form, rehearsal.train, rehearsal.outer_loss_on

    def spy(student, start, data, batches, sgd, outer_loss):
        lrs = data.image_lr.item(), data.text_lr.item()
        seen.append((*lrs, sgd.momentum, sgd.weight_decay, len(batches[0]), student.temperature))
        return original(student, start, data, batches, sgd, outer_loss)

    monkeypatch.setattr(rehearsal, "backward_through_dual_form", spy)
    monkeypatch.setattr(rehearsal, "train", lambda *args: trained.append(args[2]) or train(*args))
    monkeypatch.setattr(rehearsal, "outer_loss_on", lambda *args: temperatures.append(args[3]) or original_loss(*args))
    settings = replace(SHORT, iterations=1, **changed)
    distill(heads_data, tmp_path / "set", "rehearsal", 6, settings=settings, student=evaluated)
    own = (0.7, 0.7, 0.0) if changed else (0.3, 0.2, 0.5)
    assert seen[0] == pytest.approx((*own, 0.01, 4, 0.2))
    assert trained == [evaluated]
    assert temperatures == [0.2]


def test_inner_loops_have_every_length_between_the_shortest_and_the_longest(heads_data, tmp_path, monkeypatch):
    seen = []
    original = rehearsal.backward_through_dual_form

    def spy(student, start, data, batches, sgd, outer_loss):
        seen.append(len(batches))
        return original(student, start, data, batches, sgd, outer_loss)

    monkeypatch.setattr(rehearsal, "backward_through_dual_form", spy)
    settings = replace(SHORT, iterations=40, inner_epochs=5, min_inner_epochs=3)
    distill(heads_data, tmp_path / "set", "rehearsal", 6, settings=settings)
    assert set(seen) == {3, 4, 5}


@pytest.mark.parametrize("width", [None, 7])
def test_inner_students_are_as_wide_as_evaluated_ones(heads_data, tmp_path, monkeypatch, width):
    seen = []
    original = rehearsal.backward_through_dual_form

    def spy(student, start, *rest):
        seen.append(len(start["text_head.projection.weight"]))
        return original(student, start, *rest)

    monkeypatch.setattr(rehearsal, "backward_through_dual_form", spy)
    distill(heads_data, tmp_path / "set", "rehearsal", 6, settings=replace(SHORT, iterations=1, student_width=width))
    assert seen == [width or heads_data.encoded().towers.embed_dim]


def test_students_have_every_encoder_in_turn(heads_data, tmp_path, monkeypatch):
    """Each iteration is of one encoder: its features of the images, a student of its width, its real features."""
    read, drawn = [], []
    practise, draw = rehearsal.backward_through_dual_form, RealPairSampler.draw

    def spy_on_training(student, start, data, *rest):
        read.append((data.inputs.detach().clone(), start["image_head.projection.weight"].shape[1]))
        return practise(student, start, data, *rest)

    def spy_on_draw(self, size, random):
        drawn.append(self._encoded.towers.image)
        return draw(self, size, random)

    monkeypatch.setattr(rehearsal, "backward_through_dual_form", spy_on_training)
    monkeypatch.setattr(RealPairSampler, "draw", spy_on_draw)
    settings = replace(SHORT, iterations=2, extra_encoders=(OTHER,))  # times the square root of two encoders: 3
    with hidden_test_split():
        made = distill(heads_data, tmp_path / "set", "rehearsal", 6, settings=settings)
    own = heads_data.encoded()
    other, first = own.under(OTHER), read_initial_pairs(tmp_path / "set/run").pictures
    with torch.no_grad():
        expected = own.through_backbone(own.image_encoder.normalise(first))
    torch.testing.assert_close(read[0][0], expected)
    assert [width for _, width in read] == [encoder.image_encoder.width for encoder in (own, other, own)]
    assert drawn[:3] == [own.towers.image, OTHER, own.towers.image]
    assert made.info["settings"]["extra_encoders"] == (OTHER,)
    assert made.info["extra_encoders"] == {OTHER: other.image_encoder.fingerprint}


@pytest.mark.parametrize("extra", [(), (OTHER,)])
def test_a_killed_run_with_every_kind_of_iteration_resumes_to_the_same_bytes(extra, heads_data, tmp_path, monkeypatch):
    settings = replace(
        SHORT, iterations=3, images_per_step=3, alternate_initial_images=True, extra_encoders=extra
    )  # times the square root of four: 6
    distill(heads_data, tmp_path / "whole", "rehearsal", 6, settings=settings)
    monkeypatch.setattr("pairstill.distillation.outer_loop.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rehearsal, "cosine", lambda done, total: cosine(done, total) if done < 3 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            distill(heads_data, tmp_path / "killed", "rehearsal", 6, settings=settings)
    distill(heads_data, tmp_path / "killed", "rehearsal", 6, settings=settings, resume=True)
    for file in ("images", "texts", "run/checkpoint"):  # the sets, and where they ended if their start was chosen
        whole, killed = (read_tensors(tmp_path / run / f"{file}.safetensors") for run in ("whole", "killed"))
        assert whole.keys() == killed.keys()
        assert all(torch.equal(whole[name], killed[name]) for name in whole)


def test_a_run_does_not_go_on_with_other_weights_of_its_second_encoder(heads_data, tmp_path, monkeypatch):
    settings = replace(SHORT, iterations=1, extra_encoders=(OTHER,))
    distill(heads_data, tmp_path / "set", "rehearsal", 6, settings=settings)
    monkeypatch.setattr(EncodedDataset, "others", lambda self, images: dict.fromkeys(images, "other weights"))
    with pytest.raises(PairstillError, match=f"extra_encoders.{OTHER}.*'other weights' now"):
        distill(heads_data, tmp_path / "set", "rehearsal", 6, settings=settings, resume=True)


def test_a_look_inside_that_fails_costs_no_set(heads_data, tmp_path, monkeypatch):
    def diverge(*args):
        raise TrainingDiverged("the loss is nan.")

    monkeypatch.setattr(rehearsal, "train", diverge)
    made = distill(heads_data, tmp_path / "set", "rehearsal", 6, settings=replace(SHORT, iterations=1))
    assert len(made) == 6
    assert not (tmp_path / "set/run/diagnostics.json").exists()


def test_students_that_diverge_are_told_to_take_smaller_steps(heads_data, tmp_path, monkeypatch):
    monkeypatch.setattr(rehearsal, "_inner_loop", lambda encoder, context, recipe, data, *place: _nan_gradients(data))
    with pytest.raises(PairstillError, match=r"--settings\.student-lr"):
        distill(heads_data, tmp_path / "set", "rehearsal", 6, settings=replace(SHORT, iterations=1))


def _nan_gradients(data):
    for leaf in data.leaves().values():
        leaf.grad = torch.full_like(leaf, torch.nan)
    return float("nan")


@pytest.mark.parametrize("extra", [("test_efficientnet@random",), (OTHER, OTHER)])
def test_an_encoder_that_is_named_twice_is_refused(heads_data, tmp_path, extra):
    with pytest.raises(PairstillError, match=r"settings\.extra_encoders"):
        distill(heads_data, tmp_path / "set", "rehearsal", 6, settings=replace(SHORT, extra_encoders=extra))


def test_step_sizes_follow_a_cosine():
    assert cosine(0, 100) == 1
    assert cosine(50, 100) == pytest.approx((1 + rehearsal.LAST_LR) / 2)
    assert cosine(100, 100) == pytest.approx(rehearsal.LAST_LR)
    assert all(cosine(i, 100) > cosine(i + 1, 100) for i in range(100))
    assert math.isfinite(cosine(0, 1))


@pytest.mark.parametrize(
    "change",
    [
        {"inner_epochs": 0},
        {"min_inner_epochs": 0},
        {"students": 0},
        {"student_width": 0},
        {"real_batch": 1},
        {"image_lr": -0.1},
        {"text_lr": math.nan},
        {"image_lr": 0.0, "text_lr": 0.0},
    ],
)
def test_settings_that_cannot_work_are_refused(change):
    with pytest.raises(PairstillError, match=f"settings.{next(iter(change))}"):
        Settings(**change)
