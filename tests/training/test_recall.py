import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pairstill.training.recall import best_ranks, recall


def brute_force(scores, positives, k):
    """Sort the answers of each query with wrong ones first among equals; hit if a correct one is in the first k."""
    hits = 0
    for query, correct in enumerate(positives):
        order = sorted(range(len(scores[query])), key=lambda a: (-scores[query][a], a in correct))
        hits += any(answer in correct for answer in order[:k])
    return 100 * hits / len(positives)


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 12), st.integers(0, 100_000), st.booleans())
def test_recall_equals_brute_force_with_five_captions_and_several_images(images, seed, with_ties):
    random = torch.Generator().manual_seed(seed)
    captions = 5 * images
    links = {(c // 5, c) for c in range(captions)}
    links |= {(int(torch.randint(images, (), generator=random)), 0) for _ in range(3)}  # a caption of several images
    v = torch.randn(images, 3, generator=random, dtype=torch.float64)
    t = torch.randn(captions, 3, generator=random, dtype=torch.float64)
    if with_ties:
        v, t = v.round(), t.round()
    found = recall(v, t, torch.tensor(sorted(links)))
    scores = (v @ t.T).tolist()
    columns = (v @ t.T).T.tolist()
    of_image = [{c for i, c in links if i == image} for image in range(images)]
    of_caption = [{i for i, c in links if c == caption} for caption in range(captions)]
    for k in (1, 5, 10):
        assert getattr(found, f"tr{k}") == pytest.approx(brute_force(scores, of_image, k))
        assert getattr(found, f"ir{k}") == pytest.approx(brute_force(columns, of_caption, k))
    assert found.mean == pytest.approx(sum(getattr(found, f"{d}r{k}") for d in "it" for k in (1, 5, 10)) / 6)


def test_ties_never_help():
    same = F.normalize(torch.ones(100, 8), dim=-1)
    links = torch.stack([torch.arange(100), torch.arange(100)], 1)
    assert recall(same, same, links).mean == 0.0


def test_nan_never_helps():
    broken = torch.full((30, 8), float("nan"))
    links = torch.stack([torch.arange(30), torch.arange(30)], 1)
    assert recall(broken, broken, links).mean == 0.0


def test_perfect_retrieval():
    eye = torch.eye(20)
    links = torch.stack([torch.arange(20), torch.arange(20)], 1)
    assert recall(eye, eye, links).mean == 100.0


def test_rank_is_of_the_best_correct_answer():
    scores = torch.tensor([[0.9, 0.8, 0.7, 0.6]])
    correct = torch.tensor([[False, False, True, True]])
    assert best_ranks(scores, correct).item() == 2
