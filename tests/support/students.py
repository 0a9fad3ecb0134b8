"""Small students, and what they train on."""

import copy

import torch
from torch import nn

from pairstill.distillation.functional_student import FunctionalStudent, StudentData
from pairstill.distillation.trajectory_loss import TrajectorySegment
from pairstill.towers.heads import build_head
from pairstill.towers.two_tower import TwoTower
from pairstill.training.losses import info_nce

OTHER = "test_resnet@random"
"""Another image encoder than those of the tiny towers."""

BATCHES = [torch.tensor(rows) for rows in ([0, 1, 2], [3, 4, 0], [2, 1, 4])]
"""The rows of five pairs that a student takes in its steps."""


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


def outer_loss_of(student):
    random = torch.Generator().manual_seed(9)
    inputs, texts = (torch.randn(7, width, generator=random, dtype=torch.float64) for width in (5, 4))
    model = copy.deepcopy(student.model).eval()

    def outer_loss(parameters):
        return info_nce(*torch.func.functional_call(model, parameters, (inputs, texts)))

    return outer_loss
