import math

import pytest
import torch

from pairstill.distillation.synthetic_pairs import ADAM_BETA, Diverged, SyntheticPairs


def test_a_nan_loss_changes_nothing():
    pairs = SyntheticPairs(torch.ones(2, 3, 4, 4), torch.ones(2, 5), 1.0, 1.0, 0.5)
    with pytest.raises(Diverged, match="the loss was nan"):
        pairs.update((pairs.images.sum() + pairs.texts.sum()) * float("nan"), clip=1.0)
    assert torch.equal(pairs.images.detach(), torch.ones(2, 3, 4, 4))


def test_the_gradient_of_all_pairs_together_is_clipped():
    pairs = SyntheticPairs(torch.zeros(2, 3, 4, 4), torch.zeros(2, 5), image_lr=1.0, text_lr=1.0, momentum=0.0)
    pairs.update(1000 * (pairs.images.sum() + pairs.texts.sum()), clip=1.0)
    moved = torch.cat([pairs.images.detach().flatten(), pairs.texts.detach().flatten()])
    assert moved.norm().item() == pytest.approx(1.0, rel=1e-4)


def test_updates_are_sgd_with_momentum():
    pairs = SyntheticPairs(torch.zeros(1, 3, 2, 2), torch.zeros(1, 2), image_lr=2.0, text_lr=3.0, momentum=0.5)
    for _ in range(2):
        pairs.update(0.1 * pairs.images.sum() + 0.1 * pairs.texts.sum(), clip=10.0)
    torch.testing.assert_close(pairs.images.detach(), torch.full((1, 3, 2, 2), -2.0 * (0.1 + 0.15)))
    torch.testing.assert_close(pairs.texts.detach(), torch.full((1, 2), -3.0 * (0.1 + 0.15)))


def test_updates_are_adam_where_asked_for_and_go_on_from_a_saved_state():
    first, second = torch.randn(2, 3, 4, 4), torch.randn(2, 5)

    def fresh():
        return SyntheticPairs(first, second, image_lr=0.1, text_lr=0.2, momentum=0.9, adam=True)

    def go(pairs, steps):
        for factor in steps:
            pairs.scale_lrs(factor)
            pairs.update((pairs.images**2).sum() + (pairs.texts**3).sum(), clip=1e9)

    whole, part = fresh(), fresh()
    go(whole, [1.0, 0.5, 0.25])
    go(part, [1.0])
    later = fresh()
    later.load_state(part.state())
    go(later, [0.5, 0.25])
    assert torch.equal(whole.images, later.images)
    assert torch.equal(whole.texts, later.texts)
    images, texts = first.clone().requires_grad_(), second.clone().requires_grad_()
    adam = torch.optim.Adam([{"params": [images], "lr": 0.1}, {"params": [texts], "lr": 0.2}])
    for factor in [1.0, 0.5, 0.25]:
        adam.param_groups[0]["lr"], adam.param_groups[1]["lr"] = factor * 0.1, factor * 0.2
        adam.zero_grad()
        ((images**2).sum() + (texts**3).sum()).backward()
        adam.step()
    torch.testing.assert_close(whole.images, images)
    torch.testing.assert_close(whole.texts, texts)


def test_the_longest_step_of_adam_is_seen_coming():
    """Without momentum, a gradient after many zeros is followed for 31.6 step sizes."""
    pairs = SyntheticPairs(torch.zeros(1, 3, 2, 2), torch.zeros(1, 2), 400.0, 400.0, momentum=0.0, adam=True)
    for _ in range(5000):
        pairs.update(0 * (pairs.images.sum() + pairs.texts.sum()), clip=1e9)
    with pytest.raises(Diverged, match="would have become"):
        pairs.update(pairs.images.sum() + pairs.texts.sum(), clip=1e9)
    assert not pairs.images.any()


def test_no_step_of_adam_is_longer_than_the_bound_and_growing_gradients_come_near_it():
    pairs = SyntheticPairs(torch.zeros(1, 3, 2, 2), torch.zeros(1, 2, dtype=torch.float64), 1.0, 1.0, 0.9, adam=True)
    bound, longest, growth = pairs._adam_speed, 0.0, ADAM_BETA / 0.9
    for step in range(8000):
        before = pairs.texts.detach().clone()
        pairs.update(max(0.0, growth ** (step - 7990)) * pairs.texts.sum(), clip=1e99)
        longest = max(longest, (pairs.texts.detach() - before).abs().max().item())
    assert 0.95 * bound < longest <= bound
    assert SyntheticPairs(pairs.images, pairs.texts, 1.0, 1.0, 0.9999, adam=True)._adam_speed == math.inf


def test_pictures_that_take_turns_move_alone_and_go_on_from_a_saved_state():
    first, texts = torch.randn(5, 3, 2, 2), torch.randn(5, 4)

    def fresh():
        pairs = SyntheticPairs(first, texts, image_lr=0.1, text_lr=0.2, momentum=0.9, adam=True, blocks=2)
        pairs.kept["seen"] = torch.zeros(5)
        return pairs

    def go(pairs, turns):
        for turn in turns:
            pairs.kept["seen"] += turn + 1
            pairs.update((pairs.pixels(torch.device("cpu"), turn) ** 2).sum() + (pairs.texts**2).sum(), clip=1e9)

    whole, part, later = fresh(), fresh(), fresh()
    go(part, [0])
    assert torch.equal(part.images[3:], first[3:])
    assert not torch.equal(part.images[:3], first[:3])
    later.load_state(part.state())
    go(later, [1, 0])
    go(whole, [0, 1, 0])
    for name, value in whole.state().items():
        assert torch.equal(value, later.state()[name])
    alone = first[3:].clone().requires_grad_()  # the second part knows of one step only
    adam = torch.optim.Adam([alone], lr=0.1)
    (alone**2).sum().backward()
    adam.step()
    torch.testing.assert_close(whole.values()["images"][3:], alone.detach())
