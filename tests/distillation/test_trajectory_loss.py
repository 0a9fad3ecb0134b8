import functools
import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from pairstill import api
from pairstill.distillation import trajectory_matching
from pairstill.distillation.functional_student import FunctionalStudent, StudentData, draw_batches
from pairstill.distillation.trajectory_loss import (
    TrajectorySegment,
    draw_segment,
    matching_loss,
    stepwise_loss,
    unrolled_loss,
)
from pairstill.errors import PairstillError
from pairstill.experts.bank import Bank
from pairstill.features.encoded_dataset import EncodedDataset
from pairstill.methods import METHODS
from pairstill.methods.trajectories import lors, tesla
from pairstill.runtime.files import read_tensors
from pairstill.runtime.seeds import generator
from pairstill.sets.initial_record import read_initial_pairs
from pairstill.towers.heads import build_head
from pairstill.towers.two_tower import TwoTower
from pairstill.training.losses import weighted_bce
from pairstill.training.training_recipe import Recipe

distill = functools.partial(api.distill, student=Recipe(epochs=4, momentum=0.9, batch_size=16))
BATCHES = [torch.tensor(rows) for rows in ([0, 1, 2], [3, 4, 0], [2, 1, 4])]


def two_tower(dropout=0.0, width=6, seed=0):
    torch.manual_seed(seed)
    heads = build_head("mlp", 5, width, dropout), build_head("mlp", 4, width, dropout)
    return TwoTower(nn.Identity(), *heads).double()


def problem(similarity=True, dropout=0.0, pairs=5):
    model = two_tower(dropout)
    random = torch.Generator().manual_seed(1)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    shape = {n: torch.randn(p.shape, generator=random, dtype=torch.float64) for n, p in start.items()}
    segment = TrajectorySegment(start, {name: p + 0.1 * shape[name] for name, p in start.items()})

    def leaf(*size, scale=1.0):
        return (scale * torch.randn(*size, generator=random, dtype=torch.float64)).requires_grad_()

    soft = (torch.eye(pairs, dtype=torch.float64) * 0.8 + 0.1).requires_grad_() if similarity else None
    lrs = [torch.tensor(lr, dtype=torch.float64, requires_grad=True) for lr in (0.3, 0.2)]
    return FunctionalStudent(model, 0), segment, StudentData(leaf(pairs, 5), leaf(pairs, 4), *lrs, soft)


def all_leaves(data):
    return [t for t in (data.inputs, data.texts, data.image_lr, data.text_lr, data.similarity) if t is not None]


def test_weighted_bce_is_two_means():
    torch.manual_seed(0)
    images, texts = (nn.functional.normalize(torch.randn(4, 3, dtype=torch.float64), dim=-1) for _ in range(2))
    targets = torch.rand(4, 4, dtype=torch.float64)
    near, far = [], []
    for i, j in itertools.product(range(4), repeat=2):
        p = torch.sigmoid(images[i] @ texts[j] / 0.07)
        entry = -(targets[i, j] * p.log() + (1 - targets[i, j]) * (1 - p).log())
        (near if targets[i, j] > 0.5 else far).append(entry)
    expected = (sum(near) / len(near) + sum(far) / len(far)) / 2
    torch.testing.assert_close(weighted_bce(images, texts, targets), expected)


def test_weighted_bce_of_one_kind_only_is_its_mean():
    images = texts = torch.eye(2)
    assert torch.isfinite(weighted_bce(images, texts, torch.ones(2, 2)))
    assert torch.isfinite(weighted_bce(images, texts, torch.zeros(2, 2)))


def test_matching_loss_is_one_for_each_tower_of_a_student_that_stays_and_zero_at_the_target():
    student, segment, _ = problem()
    assert matching_loss(student, segment.start, segment).item() == pytest.approx(2)
    assert matching_loss(student, segment.target, segment).item() == 0
    only_text = {n: segment.target[n] if student.is_text(n) else p for n, p in segment.start.items()}
    assert matching_loss(student, only_text, segment).item() == pytest.approx(1)


@pytest.mark.parametrize("similarity", [False, True])
def test_the_gradient_of_mtt_equals_finite_differences(similarity):
    student, segment, data = problem(similarity)
    unrolled_loss(student, segment, data, BATCHES).backward()
    for leaf in all_leaves(data):
        flat, grad = leaf.data.reshape(-1), leaf.grad.reshape(-1)
        for index in range(min(len(flat), 6)):
            kept, losses = flat[index].item(), []
            for shift in (1e-6, -1e-6):
                flat[index] = kept + shift
                losses.append(unrolled_loss(student, segment, data, BATCHES).item())
            flat[index] = kept
            assert grad[index].item() == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-4, abs=1e-8)


def unrolled_with_constant_parameters(student, segment, data, batches):
    """The obvious, memory-hungry form of what TESLA computes."""
    reached = dict(segment.start)
    for step, rows in enumerate(batches):
        here = {name: p.detach().requires_grad_() for name, p in reached.items()}
        gradients = student.gradients(here, data, rows, step, graph=True)
        reached = {name: p - student.lr(name, data) * gradients[name] for name, p in reached.items()}
    return matching_loss(student, reached, segment)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("similarity", [False, True])
def test_the_gradient_of_tesla_equals_the_unroll_with_each_steps_parameters_detached(similarity, dropout):
    student, segment, data = problem(similarity, dropout)
    expected_loss = unrolled_with_constant_parameters(student, segment, data, BATCHES)
    expected = torch.autograd.grad(expected_loss, all_leaves(data))
    loss = stepwise_loss(student, segment, data, BATCHES)
    torch.testing.assert_close(loss, expected_loss.detach(), rtol=1e-12, atol=0)
    for leaf, wanted in zip(all_leaves(data), expected, strict=True):
        torch.testing.assert_close(leaf.grad, wanted, rtol=1e-9, atol=1e-12)


def test_the_gradient_of_tesla_is_not_that_of_mtt_but_their_losses_are_the_same():
    student, segment, data = problem()
    exact = unrolled_loss(student, segment, data, BATCHES)
    whole = torch.autograd.grad(exact, data.texts)[0]
    assert stepwise_loss(student, segment, data, BATCHES).item() == pytest.approx(exact.item(), rel=1e-12)
    assert not torch.allclose(data.texts.grad, whole, rtol=1e-3)


def most_memory(work):
    with torch.profiler.profile(profile_memory=True) as profile:
        work()
    sizes = [e.nbytes() for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    return max(itertools.accumulate(sizes))


def test_memory_of_tesla_does_not_grow_with_the_students_steps_and_that_of_mtt_does():
    student, segment, data = problem(pairs=5)
    few, many = ([BATCHES[i % 3] for i in range(steps)] for steps in (4, 32))
    stepwise_loss(student, segment, data, few)  # gradients exist from here on
    tesla_few, tesla_many = (most_memory(lambda b=b: stepwise_loss(student, segment, data, b)) for b in (few, many))
    mtt_few, mtt_many = (
        most_memory(lambda b=b: unrolled_loss(student, segment, data, b).backward()) for b in (few, many)
    )
    assert tesla_many <= 1.05 * tesla_few
    assert mtt_many > 4 * mtt_few


def test_a_span_is_two_epochs_of_one_expert(tmp_path):
    def epoch(number):
        return {"w": torch.full((2,), float(number))}

    bank = Bank.create(tmp_path, epoch(0), {}, "d", {}, packed=False)
    bank.add(0, [epoch(n) for n in (1, 2, 3)])
    bank.add(1, [epoch(n) for n in (11, 12, 13)])
    found = set()
    for seed in range(60):
        segment = draw_segment(bank, generator(seed), 2, 2, torch.device("cpu"))
        found.add((segment.start["w"][0].item(), segment.target["w"][0].item()))
    assert found == {(0, 2), (1, 3), (0, 12), (11, 13)}
    with pytest.raises(PairstillError, match="expert-epochs"):
        draw_segment(bank, generator(0), 4, 2, torch.device("cpu"))


def test_batches_go_through_all_pairs_before_any_comes_again():
    batches = draw_batches(10, 5, 5, generator(0))
    assert [len(rows) for rows in batches] == [5] * 5
    assert sorted(torch.cat(batches[:2]).tolist()) == sorted(torch.cat(batches[2:4]).tolist()) == list(range(10))
    assert len(draw_batches(3, 20, 2, generator(0))[0]) == 3


@pytest.mark.parametrize("towers", ["heads", "full"])
def test_lors_of_rank_0_with_a_fixed_diagonal_is_tesla(towers, request, tmp_path):
    data, bank = request.getfixturevalue(f"{towers}_data"), request.getfixturevalue(f"{towers}_bank")
    common = tesla.Settings(iterations=2, check_every=2, inner_steps=2, inner_batch=4, image_lr=1.0, text_lr=1.0)
    as_tesla = distill(data, tmp_path / "tesla", "tesla", 6, bank, settings=common)

    def last(name):  # whatever validation chose, what the last iteration made
        return read_tensors(tmp_path / name / "run/checkpoint.safetensors")

    same = lors.Settings(**vars(common), rank=0, similarity_lr=0.0)
    as_lors = distill(data, tmp_path / "lors", "lors", 6, bank, settings=same)
    assert torch.equal(last("tesla")["images"], last("lors")["images"])
    assert torch.equal(last("tesla")["texts"], last("lors")["texts"])
    assert torch.equal(as_tesla.images, as_lors.images)
    assert torch.equal(as_tesla.similarity, as_lors.similarity)
    assert as_tesla.info["student"] == as_lors.info["student"]
    learnt = lors.Settings(**vars(common), rank=2, similarity_lr=0.1)
    distill(data, tmp_path / "learnt", "lors", 6, bank, settings=learnt)
    assert last("learnt")["right"].any()
    assert not torch.equal(last("learnt")["diagonal"], torch.ones(6))


@pytest.mark.parametrize("towers", ["heads", "full"])
def test_only_pictures_that_the_student_saw_are_passed_and_move(towers, request, tmp_path, monkeypatch):
    data, bank = (request.getfixturevalue(f"{towers}_{what}") for what in ("data", "bank"))
    passed, original = [], EncodedDataset.through_front
    monkeypatch.setattr(EncodedDataset, "through_front", lambda self, x: passed.append(len(x)) or original(self, x))
    short = tesla.Settings(iterations=1, check_every=2, inner_steps=2, inner_batch=2, image_lr=1.0, text_lr=1.0)
    distill(data, tmp_path / "few", "tesla", 6, bank, settings=short)
    first, last = read_initial_pairs(tmp_path / "few/run"), read_tensors(tmp_path / "few/run/checkpoint.safetensors")
    before = data.encoded().image_encoder.normalise(first.pictures)
    moved = [(a - b).abs().max() > 1e-4 for a, b in zip(last["images"], before, strict=True)]
    assert passed == [4]
    assert sum(moved) == 4
    seen = [not torch.equal(a, b) for a, b in zip(last["texts"], first.texts, strict=True)]
    assert seen == moved


def test_settings_that_make_no_sense_are_said():
    zero, negative = ("inner_steps", "student_lr"), ("image_lr", "text_lr", "lr_lr", "rank", "similarity_lr")
    for bad in ({"inner_batch": 1}, {"momentum": 1.0}, *({n: 0} for n in zero), *({n: -1} for n in negative)):
        with pytest.raises(PairstillError, match=next(iter(bad))):
            replace(lors.Settings(), **bad)


@pytest.mark.parametrize("method", ["mtt-vl", "tesla"])
def test_texts_step_down_the_gradient_of_the_matching_loss(method, heads_data, heads_bank, tmp_path, monkeypatch):
    """Of students that are matched with the temperature of those that are scored."""
    gradients, temperatures = [], []
    name = "unrolled_loss" if method == "mtt-vl" else "stepwise_loss"

    def as_known(student, segment, data, batches):
        temperatures.append(student.temperature)
        gradients.append(torch.randn(data.texts.shape, generator=generator(0)))
        loss = (data.texts * gradients[-1]).sum() + 0 * (data.inputs.sum() + data.image_lr + data.text_lr)
        if method == "tesla":
            loss.backward()
        return loss

    monkeypatch.setattr(trajectory_matching, name, as_known)
    settings = METHODS[method].settings(iterations=1, check_every=1, inner_batch=4, image_lr=1.0, text_lr=0.5)
    recipe = Recipe(epochs=1, batch_size=16, temperature=0.2)
    distill(heads_data, tmp_path / "set", method, 6, heads_bank, settings=settings, student=recipe)
    moved = read_tensors(tmp_path / "set/run/checkpoint.safetensors")["texts"]
    torch.testing.assert_close(moved, read_initial_pairs(tmp_path / "set/run").texts - 0.5 * gradients[0])
    assert temperatures == [0.2]


def test_a_matched_student_has_the_loss_that_a_scored_one_trains_with():
    student, segment, data = problem()
    warm, rows = FunctionalStudent(student.model, 0, temperature=0.5), torch.arange(5)
    model = student.model.eval()
    expected = weighted_bce(*model(data.inputs, data.texts), data.similarity, 0.5)
    found = warm.loss(model, segment.start, (data.inputs, data.texts), data, rows, 0)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["test_efficientnet@random", "test_resnet@random"])
def test_backbones_with_batch_norms_can_be_matched(name):
    from pairstill.towers.image_encoder import load_image_encoder
    from pairstill.towers.two_tower import Towers, build_model

    towers = Towers(image=name, image_size=32, train="full", dropout=0.0)
    model = build_model(towers, load_image_encoder(name), 4, 0)
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    segment = TrajectorySegment(start, {n: p + 0.01 * torch.randn(p.shape) for n, p in start.items()})
    lrs = [torch.tensor(0.1, requires_grad=True) for _ in range(2)]
    data = StudentData(torch.randn(5, 3, 32, 32, requires_grad=True), torch.randn(5, 4, requires_grad=True), *lrs)
    for gradient in (
        lambda: unrolled_loss(FunctionalStudent(model, 0), segment, data, BATCHES[:2]).backward(),
        lambda: stepwise_loss(FunctionalStudent(model, 0), segment, data, BATCHES[:2]),
    ):
        data.inputs.grad = None
        gradient()
        assert torch.isfinite(data.inputs.grad).all()
        assert data.inputs.grad.abs().sum() > 0
