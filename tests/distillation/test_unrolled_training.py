import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from pairstill.distillation import unrolled_training
from pairstill.distillation.unrolled_training import SgdSettings, backward_through_training
from pairstill.training.losses import info_nce
from tests.support.students import BATCHES, outer_loss_of, problem

SGD = SgdSettings(momentum=0.6, weight_decay=0.05)


def unrolled_by_autograd(student, start, data, batches, sgd, outer_loss):
    """The obvious way: every step in one graph."""
    theta = {name: p.detach().requires_grad_() for name, p in start.items()}
    velocity = {name: torch.zeros_like(p) for name, p in theta.items()}
    for step, rows in enumerate(batches):
        gradients = student.gradients(theta, data, rows, step, graph=True)
        velocity = {n: sgd.momentum * velocity[n] + gradients[n] + sgd.weight_decay * theta[n] for n in theta}
        theta = {n: p - student.lr(n, data) * velocity[n] for n, p in theta.items()}
    return outer_loss(theta)


@pytest.mark.parametrize("similarity", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("sgd", [SGD, SgdSettings()])
def test_the_gradient_is_that_of_the_whole_unroll(similarity, dropout, sgd):
    student, segment, data = problem(similarity, dropout)
    outer_loss = outer_loss_of(student)
    expected_loss = unrolled_by_autograd(student, segment.start, data, BATCHES, sgd, outer_loss)
    expected = torch.autograd.grad(expected_loss, list(data.leaves().values()))
    loss = backward_through_training(student, segment.start, data, BATCHES, sgd, outer_loss)
    torch.testing.assert_close(loss, expected_loss.detach())
    for leaf, gradient in zip(data.leaves().values(), expected, strict=True):
        torch.testing.assert_close(leaf.grad, gradient)


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_long_inner_loop_is_run_again_in_segments_to_the_same_gradient(monkeypatch, kept):
    def gradients():
        student, segment, data = problem(similarity=False, dropout=0.3)
        loss = backward_through_training(student, segment.start, data, BATCHES, SGD, outer_loss_of(student))
        return [loss, *(leaf.grad for leaf in data.leaves().values())]

    whole = gradients()
    monkeypatch.setattr(unrolled_training, "KEPT_STEPS", kept)
    for found, expected in zip(gradients(), whole, strict=True):
        assert torch.equal(found, expected)


def test_the_gradient_is_that_of_finite_differences():
    student, segment, data = problem(similarity=False)
    outer_loss = outer_loss_of(student)
    backward_through_training(student, segment.start, data, BATCHES, SGD, outer_loss)
    for leaf in (data.inputs, data.texts):
        for place in [(0, 1), (3, 2), (4, 0)]:
            losses = []
            for change in (1e-6, -1e-6):
                with torch.no_grad():
                    leaf[place] += change
                fresh = replace(data, inputs=data.inputs.detach(), texts=data.texts.detach())
                losses.append(backward_through_training(student, segment.start, fresh, BATCHES, SGD, outer_loss))
                with torch.no_grad():
                    leaf[place] -= change
            torch.testing.assert_close(leaf.grad[place], (losses[0] - losses[1]) / 2e-6, rtol=1e-4, atol=1e-7)


def test_a_student_arrives_where_torch_optim_would_take_it():
    student, segment, data = problem(similarity=False)
    model = student.model
    model.load_state_dict(segment.start, strict=False)
    groups = [
        {"params": list(model.image_parameters().values()), "lr": 0.3},
        {"params": list(model.text_parameters().values()), "lr": 0.2},
    ]
    optimiser = torch.optim.SGD(groups, momentum=0.6, weight_decay=0.05)
    for rows in BATCHES:
        optimiser.zero_grad()
        info_nce(*model(data.inputs[rows].detach(), data.texts[rows].detach())).backward()
        optimiser.step()
    arrived = {}
    backward_through_training(
        student, segment.start, data, BATCHES, SGD, lambda p: arrived.update(p) or outer_loss_of(student)(p)
    )
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(arrived[name].detach(), parameter.detach())


MEMORY = """
import sys, torch
from torch import nn
from pairstill.runtime.memory import peak_mib
from pairstill.training.losses import info_nce
from pairstill.distillation import unrolled_training
from pairstill.distillation.unrolled_training import SgdSettings, backward_through_training
from pairstill.distillation.functional_student import FunctionalStudent, StudentData
from pairstill.towers.heads import build_head
from pairstill.towers.two_tower import TwoTower
from tests.distillation.test_unrolled_training import unrolled_by_autograd
model = TwoTower(nn.Identity(), build_head("mlp", 64, 64), build_head("mlp", 64, 64))
start = {n: p.detach().clone() for n, p in model.named_parameters()}
x, t = (torch.randn(1500, 64) for _ in range(2))
data = StudentData(x.clone().requires_grad_(), t.clone().requires_grad_(), torch.tensor(0.1), torch.tensor(0.1))
batches = [torch.arange(1500)] * int(sys.argv[1])
unrolled_training.KEPT_STEPS = 3
outer_loss = lambda p: info_nce(*torch.func.functional_call(model, p, (x[:100], t[:100])))
way = {"ours": backward_through_training, "autograd": unrolled_by_autograd}[sys.argv[2]]
way(FunctionalStudent(model, 0), start, data, batches, SgdSettings(0.9, 5e-4), outer_loss)
print(peak_mib())
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_graphs_of_more_steps_than_are_kept():
    def peak(steps, way):
        command = [sys.executable, "-c", MEMORY, str(steps), way]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    few = peak(3, "ours")
    grown, grown_by_autograd = peak(18, "ours") - few, peak(18, "autograd") - few
    assert grown_by_autograd > 300  # MiB
    assert grown < grown_by_autograd / 5
