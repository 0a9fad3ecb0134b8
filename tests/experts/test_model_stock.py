import math

import pytest
import torch

from pairstill.experts.model_stock import merge, merge_ratio


def gram_of(*displacements):
    flat = torch.stack([d.double().reshape(-1) for d in displacements])
    return (flat @ flat.T)[None]


def published_ratio(a, b):
    """Eq. 5 as it is printed."""
    inner = float((a.double() * b.double()).sum())
    return 2 * inner / (float(a.double().norm()) * float(b.double().norm()) + inner)


def test_two_experts_give_the_printed_formula():
    random = torch.Generator().manual_seed(0)
    for _ in range(50):
        base = torch.randn(7, 5, generator=random)
        a, b = base + torch.randn(7, 5, generator=random), base + torch.randn(7, 5, generator=random)
        if float((a * b).sum()) > 0:
            assert merge_ratio(gram_of(a, b)).item() == pytest.approx(published_ratio(a, b), rel=1e-9)


def test_identical_experts_give_one_and_conflicting_ones_zero():
    a = torch.randn(10, generator=torch.Generator().manual_seed(1))
    assert merge_ratio(gram_of(a, a)).item() == pytest.approx(1.0)
    assert merge_ratio(gram_of(a, a, a)).item() == pytest.approx(1.0)
    assert merge_ratio(gram_of(a, -a)).item() == 0.0
    assert merge_ratio(gram_of(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))).item() == 0.0
    assert merge_ratio(gram_of(torch.tensor([1.0, 0.0]), torch.tensor([-0.5, 1.0]))).item() == 0.0


def test_a_layer_that_did_not_move_stays():
    zero = torch.zeros(4)
    assert merge_ratio(gram_of(zero, zero)).item() == 0.0
    assert merge_ratio(gram_of(zero, torch.ones(4))).item() == 0.0


def test_more_experts_give_model_stocks_general_form():
    cosine, n = 0.3, 5
    gram = torch.full((1, n, n), cosine, dtype=torch.float64)
    gram[0].fill_diagonal_(1)
    assert merge_ratio(gram).item() == pytest.approx(n * cosine / (1 + (n - 1) * cosine))


def test_merge_is_the_formula_layer_by_layer():
    random = torch.Generator().manual_seed(2)
    anchor = {"a": torch.randn(3, 4, generator=random), "b": torch.randn(5, generator=random)}
    experts = [
        {name: p + 0.1 + 0.2 * torch.randn(p.shape, generator=random) for name, p in anchor.items()} for _ in range(2)
    ]
    deltas = [{name: expert[name] - anchor[name] for name in anchor} for expert in experts]
    ratios = torch.cat([merge_ratio(gram_of(deltas[0][name], deltas[1][name])) for name in anchor])
    merged = merge(anchor, experts, ratios, alpha=0.5)
    for name, start in anchor.items():
        t = max(0.0, published_ratio(deltas[0][name], deltas[1][name]))
        expected = start + 0.5 * t * 0.5 * (deltas[0][name] + deltas[1][name])
        torch.testing.assert_close(merged[name], expected, rtol=1e-5, atol=1e-6)


def test_alpha_zero_is_the_anchor():
    anchor = {"a": torch.randn(4)}
    merged = merge(anchor, [{"a": torch.randn(4)}, {"a": torch.randn(4)}], torch.ones(1), alpha=0.0)
    assert torch.equal(merged["a"], anchor["a"])
    assert math.isfinite(merged["a"].sum().item())
