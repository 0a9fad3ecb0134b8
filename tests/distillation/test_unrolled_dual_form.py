import pytest
import torch
from torch import nn

from pairstill.distillation import unrolled_dual_form, unrolled_training
from pairstill.distillation.functional_student import FunctionalStudent, StudentData
from pairstill.distillation.unrolled_dual_form import backward_through_dual_form
from pairstill.distillation.unrolled_training import SgdSettings, backward_through_training
from pairstill.towers.heads import build_head
from pairstill.towers.two_tower import TwoTower
from tests.support.students import outer_loss_of

SGD = SgdSettings(momentum=0.6, weight_decay=0.05)
BATCHES = [torch.tensor(rows) for rows in ([0, 1, 2], [3, 4, 0], [2, 1, 4], [1, 3, 0])]


def problem(head="mlp", image_head="mlp", dropout=0.3, similarity=False, pairs=5):
    """Five pairs of 5 and 4 features: in both towers more pairs than, or as many as, a first weight's columns."""
    torch.manual_seed(0)
    width = 5 if image_head == "none" else 6
    heads = build_head(image_head, 5, width, dropout), build_head(head, 4, width, dropout)
    model = TwoTower(nn.Identity(), *heads).double()
    leaves = [torch.randn(pairs, columns, dtype=torch.float64).requires_grad_() for columns in (5, 4)]
    soft = (torch.eye(pairs, dtype=torch.float64) * 0.8 + 0.1).requires_grad_() if similarity else None
    lrs = [torch.tensor(lr, dtype=torch.float64) for lr in (0.3, 0.2)]
    return FunctionalStudent(model, 0), StudentData(*leaves, *lrs, soft)


def outcome(way, sgd=SGD, **kind):
    student, data = problem(**kind)
    start = {name: p.detach().clone() for name, p in student.model.named_parameters()}
    arrived = {}
    outer_loss = outer_loss_of(student)
    loss = way(student, start, data, BATCHES, sgd, lambda p: arrived.update(p) or outer_loss(p))
    return [loss, *(leaf.grad for leaf in data.leaves().values()), *(arrived[name].detach() for name in start)]


KINDS = [
    {},
    {"dropout": 0.0},
    {"similarity": True},
    {"head": "linear", "image_head": "linear"},
    {"image_head": "none"},
    {"sgd": SgdSettings()},
    {"sgd": SgdSettings(momentum=0.9)},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_dual_form_gives_the_same_gradient(kind):
    for found, expected in zip(
        outcome(backward_through_dual_form, **kind), outcome(backward_through_training, **kind), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_long_inner_loops_in_segments_too(monkeypatch):
    expected = outcome(backward_through_training)
    monkeypatch.setattr(unrolled_training, "KEPT_STEPS", 2)
    for found, wanted in zip(outcome(backward_through_dual_form), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("worth", "heads"), [(2, {"image_head", "text_head"}), (1, {"image_head"}), (0.5, set())])
def test_only_heads_with_few_pairs_for_their_width_are_dual(monkeypatch, worth, heads):
    seen = set()
    original = unrolled_dual_form.backward_through_training

    def spy(student, start, data, *rest):
        seen.update({head for head in ("image_head", "text_head") if start[f"{head}.projection.weight"].shape[0] == 5})
        return original(student, start, data, *rest)

    expected = outcome(backward_through_training)
    monkeypatch.setattr(unrolled_dual_form, "PAIRS_PER_FEATURE", worth)
    monkeypatch.setattr(unrolled_dual_form, "backward_through_training", spy)
    for found, wanted in zip(outcome(backward_through_dual_form), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)
    assert seen == heads
