"""Training a two-tower model with InfoNCE: the one loop behind experts and students."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from pairstill.errors import PairstillError
from pairstill.features.training_pairs import TrainingPairs
from pairstill.runtime.seeds import generator, global_seed
from pairstill.towers.two_tower import TwoTower
from pairstill.training.losses import info_nce, weighted_bce
from pairstill.training.training_recipe import Recipe

FASTER_IN_BFLOAT16 = ("cuda",)
"""Kinds of devices. Not a CPU, even one with avx512_bf16: a step took 1.3 times as long (docs/log.md)."""


class TrainingDiverged(PairstillError):
    """The loss left the finite world."""


def batches(count: int, size: int, random: torch.Generator) -> Iterator[Tensor]:
    """Rows 0..count-1 in a random order, `size` at a time; a single row left over is dropped (it has no negative)."""
    for rows in torch.randperm(count, generator=random).split(size):
        if len(rows) > 1:
            yield rows


def one_link_per_image(links: Tensor, random: torch.Generator) -> Tensor:
    """Of each image's links [P, 2] one, drawn at random."""
    shuffled = links[torch.randperm(len(links), generator=random)]
    order = torch.argsort(shuffled[:, 0], stable=True)
    images = shuffled[order, 0]
    first = torch.ones(len(images), dtype=torch.bool)
    first[1:] = images[1:] != images[:-1]
    return shuffled[order[first]]


def train(
    model: TwoTower,
    pairs: TrainingPairs,
    recipe: Recipe,
    seed: int,
    on_epoch: Callable[[int], None] | None = None,
    done: int = 0,
    velocity: dict[str, Tensor] | None = None,
) -> None:
    """Train `model` in place. `on_epoch` gets the number of finished epochs, with the model in training mode.

    A model that went through `done` epochs before goes on to the same result, given the `velocity` that it had then:
    what momentum keeps of each parameter, by name. It is brought up to date before `on_epoch`.
    """
    groups = [
        {"params": list(model.image_parameters().values()), "full_lr": recipe.lr},
        {
            "params": list(model.text_parameters().values()),
            "full_lr": recipe.lr if recipe.text_lr is None else recipe.text_lr,
        },
    ]
    optimiser = torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
    names = {name: parameter for name, parameter in model.named_parameters() if recipe.momentum}
    for name, parameter in names.items() if velocity else ():
        optimiser.state[parameter]["momentum_buffer"] = (velocity or {})[name].to(parameter, copy=True)
    for epoch in range(done, recipe.epochs):
        with global_seed(seed, "dropout", epoch):
            loss = _train_epoch(model, optimiser, pairs, recipe, epoch, generator(seed, "batches", epoch))
        _refuse_divergence(model, loss, recipe, epoch + 1)
        if velocity is not None:
            velocity.update({name: optimiser.state[p]["momentum_buffer"] for name, p in names.items()})
        if on_epoch:
            on_epoch(epoch + 1)


def _train_epoch(
    model: TwoTower,
    optimiser: torch.optim.Optimizer,
    pairs: TrainingPairs,
    recipe: Recipe,
    epoch: int,
    random: torch.Generator,
) -> float:
    """One pass over the pairs; returns the last loss."""
    model.train()
    loss = torch.zeros(())
    device = next(model.parameters()).device
    links = one_link_per_image(pairs.links, random) if recipe.one_caption else pairs.links
    steps = list(batches(len(links), recipe.batch_size, random))
    for step, rows in enumerate(steps):
        for group in optimiser.param_groups:
            group["lr"] = group["full_lr"] * recipe.share_of_lr(epoch + step / len(steps))
        image_rows, text_rows = links[rows].unbind(1)
        inputs = pairs.inputs.take(image_rows, random).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=_in_bfloat16(model, device)):
            images, texts = model(inputs, pairs.texts[text_rows].to(device))
        images, texts = images.float(), texts.float()
        if pairs.similarity is None:
            loss = info_nce(images, texts, recipe.temperature)
        else:
            loss = weighted_bce(images, texts, pairs.similarity[rows][:, rows].to(device), recipe.temperature)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
    return loss.item()


def _in_bfloat16(model: TwoTower, device: torch.device) -> bool:
    """Whether the towers compute in bfloat16 what bears it: with a backbone, where that is faster."""
    return device.type in FASTER_IN_BFLOAT16 and not isinstance(model.body, nn.Identity)


def _refuse_divergence(model: TwoTower, loss: float, recipe: Recipe, epoch: int) -> None:
    """A bad gradient in the last step shows in no loss, so the parameters are looked at too."""
    if math.isfinite(loss) and all(torch.isfinite(parameter).all() for parameter in model.parameters()):
        return
    raise TrainingDiverged(
        f"training diverged in epoch {epoch}: the loss was {loss:.3g} with lr {recipe.lr}, or the parameters are no "
        "numbers any more. Lower the lr: --recipe.lr of experts, --student.lr of students."
    )
