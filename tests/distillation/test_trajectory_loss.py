import itertools

import pytest
import torch

from pairstill.distillation.functional_student import FunctionalStudent, StudentData
from pairstill.distillation.trajectory_loss import (
    TrajectorySegment,
    draw_segment,
    matching_loss,
    stepwise_loss,
    unrolled_loss,
)
from pairstill.errors import PairstillError
from pairstill.experts.bank import Bank
from pairstill.runtime.seeds import generator
from tests.support.students import BATCHES, all_leaves, problem


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
