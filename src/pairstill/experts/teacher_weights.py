"""The teacher of each distillation iteration: which weights encode the pairs this time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pairstill.errors import PairstillError
from pairstill.experts.bank import Bank
from pairstill.experts.model_stock import merge, merge_ratio

Weights = dict[str, Tensor]


def pretrained(bank: Bank, random: torch.Generator, experts: int, alpha: float) -> Weights:
    """The anchor itself."""
    return bank.anchor


def fine_tuned(bank: Bank, random: torch.Generator, experts: int, alpha: float) -> Weights:
    """One expert, drawn at random, after its last epoch."""
    expert = _draw(bank.experts, 1, random)[0]
    return bank.parameters(bank.rows_of(expert)[-1])


def weighted_sum(bank: Bank, random: torch.Generator, experts: int, alpha: float) -> Weights:
    """Anchor and one random checkpoint, mixed with a weight drawn from [0, 1]."""
    end = bank.parameters(draw_checkpoints(bank, 1, random)[0])
    weight = torch.rand((), generator=random).item()
    return {name: torch.lerp(start, end[name], weight) for name, start in bank.anchor.items()}


def merged(bank: Bank, random: torch.Generator, experts: int, alpha: float) -> Weights:
    """The paper's: N different experts, a random epoch of each, merged with the anchor layer by layer."""
    rows = draw_checkpoints(bank, experts, random)
    drawn = torch.tensor(rows)
    ratios = merge_ratio(bank.gram[:, drawn[:, None], drawn])
    return merge(bank.anchor, [bank.parameters(row) for row in rows], ratios, alpha)


TEACHERS: dict[str, Callable[[Bank, torch.Generator, int, float], Weights]] = {
    "pretrained": pretrained,
    "fine-tuned": fine_tuned,
    "weighted-sum": weighted_sum,
    "merged": merged,
}


def _draw(items: list[int], count: int, random: torch.Generator) -> list[int]:
    if count > len(items):
        raise PairstillError(f"the bank has {len(items)} experts; this teacher needs {count}. Train more experts.")
    return [items[i] for i in torch.randperm(len(items), generator=random)[:count].tolist()]


def draw_checkpoints(bank: Bank, count: int, random: torch.Generator) -> list[int]:
    """A random epoch of each of `count` different experts."""
    rows = []
    for expert in _draw(bank.experts, count, random):
        epochs = bank.rows_of(expert)
        rows.append(epochs[int(torch.randint(len(epochs), (), generator=random))])
    return rows
