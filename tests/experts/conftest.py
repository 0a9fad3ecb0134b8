"""A small bank."""

import torch

from pairstill.experts.bank import Bank

ANCHOR = {"w": torch.zeros(3, 4), "b": torch.zeros(5)}


def expert(seed, epochs=3):
    random = torch.Generator().manual_seed(seed)
    return [{name: 0.3 + torch.randn(p.shape, generator=random) for name, p in ANCHOR.items()} for _ in range(epochs)]


def small_bank(folder, experts=3, packed=True):
    bank = Bank.create(folder, ANCHOR, {"image": "a"}, "data1", {"epochs": 3}, packed)
    for number in range(experts):
        bank.add(number, expert(number))
    return bank
