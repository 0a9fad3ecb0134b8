import pytest
import torch
import torch.nn.functional as F

from pairstill.distillation import warm_up
from pairstill.errors import PairstillError
from pairstill.methods.selection import forgetting
from tests.support.coresets import rows_chosen


def test_forgetting_takes_the_most_forgotten(context, monkeypatch):
    """Against the history that training writes, asked for once more."""
    context = context("forgetting", epochs=4, group=16)
    pairs = context.encoded.split("train")
    histories = []
    original = forgetting.forgetting_order
    monkeypatch.setattr(
        forgetting, "forgetting_order", lambda right, random: original(histories.append(right) or right, random)
    )
    chosen = rows_chosen(pairs, context, "forgetting", monkeypatch)
    right = histories[0]
    assert right.shape == (4, len(pairs.pairs.links))
    assert 0 < right.float().mean() < 1
    events = forgetting.forgetting_events(right)
    most_of_each_picture = [
        events[pairs.pairs.links[:, 0] == picture].max().item() for picture in range(len(pairs.images))
    ]
    assert sorted(events[chosen].tolist(), reverse=True) == sorted(most_of_each_picture, reverse=True)[:6]


HISTORY = torch.tensor(
    [
        # epochs 1 to 5 of one pair
        [0, 0, 0, 0, 0],  # never learnt
        [1, 1, 1, 1, 1],  # learnt at once and kept
        [0, 1, 0, 1, 0],  # forgotten twice
        [0, 0, 1, 1, 0],  # forgotten once, at the end
        [1, 0, 0, 0, 1],  # forgotten once, and learnt again
        [0, 0, 0, 0, 1],  # learnt at last
        [1, 0, 1, 0, 1],  # forgotten twice, and learnt again
    ],
    dtype=torch.bool,
).T


def test_forgetting_events_of_a_history_written_by_hand():
    assert forgetting.forgetting_events(HISTORY).tolist() == [0, 0, 2, 1, 1, 0, 2]
    assert forgetting.never_learnt(HISTORY).tolist() == [True, *[False] * 6]


def test_most_forgotten_first_never_learnt_last_ties_by_the_seed():
    orders = set()
    for seed in range(20):
        order = forgetting.forgetting_order(HISTORY, torch.Generator().manual_seed(seed)).tolist()
        assert [set(order[:2]), set(order[2:4]), set(order[4:6]), order[6]] == [{2, 6}, {3, 4}, {1, 5}, 0]
        again = forgetting.forgetting_order(HISTORY, torch.Generator().manual_seed(seed)).tolist()
        assert order == again
        orders.add(tuple(order))
    assert len(orders) > 4


def links_with(captions, shared=0):
    """Images with so many captions each; the last `shared` images also have caption 0."""
    pictures = torch.arange(len(captions)).repeat_interleave(torch.tensor(captions))
    links = torch.stack([pictures, torch.arange(len(pictures))], dim=1)
    also = torch.tensor([[len(captions) - 1 - k, 0] for k in range(shared)], dtype=torch.long).reshape(-1, 2)
    return torch.cat([links, also])


@pytest.mark.parametrize(
    ("captions", "size"), [([5] * 40, 16), ([1] * 33, 8), ([1, 7, 2, 2, 3, 1, 1, 4], 10), ([2, 2], 128)]
)
def test_groups_hold_every_pair_once_and_no_picture_twice(captions, size):
    links = links_with(captions)
    groups = forgetting.deal_groups(links, size, torch.Generator().manual_seed(0))
    assert sorted(torch.cat(groups).tolist()) == list(range(len(links)))
    sizes = [len(group) for group in groups]
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1
    for group in groups:
        assert len(set(links[group, 0].tolist())) == len(group)


def test_rank_one_both_ways_is_what_brute_force_finds():
    random = torch.Generator().manual_seed(3)
    links = links_with([3] * 12, shared=4)
    texts = F.normalize(torch.randn(36, 3, generator=random), dim=-1)
    images = F.normalize(texts[::3] + 0.3 * torch.randn(12, 3, generator=random), dim=-1)
    groups = forgetting.deal_groups(links, 7, random)
    right = forgetting.right_pairs(images, texts, links, groups)
    belong = {tuple(link) for link in links.tolist()}
    for group in groups:
        members = links[group].tolist()
        for row, (image, text) in zip(group.tolist(), members, strict=True):
            own = images[image] @ texts[text]
            text_first = all(images[image] @ texts[t] < own for _, t in members if (image, t) not in belong)
            image_first = all(images[i] @ texts[text] < own for i, _ in members if (i, text) not in belong)
            assert right[row].item() == (text_first and image_first)
    assert 0 < right.sum() < len(right)


def test_one_way_is_not_enough_and_neither_is_a_tie():
    nothing_else = torch.eye(2, dtype=torch.bool)
    images, texts = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert forgetting.find_each_other(images, texts, nothing_else).tolist() == [True, True]
    one_way = torch.tensor([[0.9, 0.0], [0.95, 1.0]])  # scores: text 1 is ahead of text 0 for image 0
    assert forgetting.find_each_other(images, one_way, nothing_else).tolist() == [False, True]
    alike = torch.ones(2, 2)
    assert forgetting.find_each_other(alike, alike, nothing_else).tolist() == [False, False]
    assert forgetting.find_each_other(alike, alike, torch.ones(2, 2, dtype=torch.bool)).tolist() == [True, True]
    lost = torch.full((2, 2), torch.nan)
    assert not forgetting.find_each_other(lost, lost, nothing_else).any()


@pytest.mark.parametrize(
    ("settings", "change"),
    [(warm_up.Settings, {"epochs": 0}), (forgetting.Settings, {"epochs": 1}), (forgetting.Settings, {"group": 1})],
)
def test_settings_that_cannot_work_are_refused(settings, change):
    with pytest.raises(PairstillError, match=f"{next(iter(change))}.* must be at least"):
        settings(**change)
