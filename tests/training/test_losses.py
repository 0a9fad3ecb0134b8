import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pairstill.errors import PairstillError
from pairstill.training.losses import (
    ENERGY_FLOOR,
    FEATURE_SETS,
    KERNELS,
    agreement,
    chordal_kernel,
    discrepancy,
    energy_bracket,
    energy_root,
    geodesic_kernel,
    info_nce,
    kernel_energy,
    laplacian_kernel,
    weighted_bce,
)


def unit(rows, width, seed=0):
    random = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(rows, width, generator=random, dtype=torch.float64), dim=-1)


def slow_kernel(name, a, b, sigma):
    cosine = sum(x * y for x, y in zip(a, b, strict=True))
    if name == "geodesic":
        return math.exp(-(math.acos(max(-1.0, min(1.0, cosine))) ** 2) / (2 * sigma**2))
    if name == "chordal":
        return math.exp(-sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / (2 * sigma**2))
    return math.exp(-sum(abs(x - y) for x, y in zip(a, b, strict=True)) / sigma)


def slow_energy(name, a, b, sigma):
    def mean(p, q):
        return sum(slow_kernel(name, x, y, sigma) for x in p for y in q) / (len(p) * len(q))

    a, b = a.tolist(), b.tolist()
    return math.sqrt(mean(a, a) + mean(b, b) - 2 * mean(a, b))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("sigma", [0.3, 0.5, 2.0])
def test_kernels_and_energy_equal_loops(name, sigma):
    a, b = unit(5, 4, 1), unit(7, 4, 2)
    expected = torch.tensor(
        [[slow_kernel(name, x, y, sigma) for y in b.tolist()] for x in a.tolist()], dtype=torch.float64
    )
    torch.testing.assert_close(KERNELS[name](a, b, sigma), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        kernel_energy(a, b, sigma, name).item(), slow_energy(name, a, b, sigma), rtol=1e-9, atol=1e-12
    )


def test_info_nce_equals_loops():
    v, t = unit(6, 5, 3), unit(6, 5, 4)
    logits = [[sum(x * y for x, y in zip(a, b, strict=True)) / 0.07 for b in t.tolist()] for a in v.tolist()]
    total = 0.0
    for j in range(6):
        total += -math.log(math.exp(logits[j][j]) / sum(math.exp(logits[j][k]) for k in range(6)))
        total += -math.log(math.exp(logits[j][j]) / sum(math.exp(logits[k][j]) for k in range(6)))
    assert info_nce(v, t).item() == pytest.approx(total / 12, rel=1e-12)


@pytest.mark.parametrize("name", KERNELS)
def test_gradients_equal_finite_differences(name):
    a, b = unit(4, 3, 5), unit(3, 3, 6).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: energy_bracket(a, F.normalize(x, dim=-1), 0.5, name), (b,))
    assert torch.autograd.gradcheck(lambda x: kernel_energy(a, F.normalize(x, dim=-1), 0.5, name), (b,))
    assert torch.autograd.gradcheck(lambda x: info_nce(F.normalize(x, dim=-1), a[:3]), (b,))


@pytest.mark.parametrize("sigma", [0.3, 0.5, 1.0])
def test_geodesic_slope_is_right_at_equal_vectors(sigma):
    a = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    cosine = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    b = torch.cat([cosine, torch.zeros(1, 1, dtype=torch.float64)], dim=1)
    geodesic_kernel(a, b, sigma).sum().backward()
    assert cosine.grad.item() == pytest.approx(1 / sigma**2, rel=1e-9)
    near = torch.tensor(1 - 1e-10, dtype=torch.float64, requires_grad=True)
    geodesic_kernel(a, torch.stack([near, torch.zeros_like(near)])[None], sigma).sum().backward()
    assert near.grad.item() == pytest.approx(1 / sigma**2, rel=1e-6)


def test_near_duplicates_keep_their_gradient_in_float32():
    a = torch.tensor([[1.0, 0.0, 0.0]])
    b = F.normalize(torch.tensor([[1.0, 1e-4, 0.0]]), dim=-1).requires_grad_()
    geodesic_kernel(a, F.normalize(b, dim=-1), 0.5).sum().backward()
    assert b.grad[0, 1].item() == pytest.approx(-4e-4, rel=0.02)


@pytest.mark.parametrize("sigma", [0.3, 0.5, 2.0])
def test_geodesic_slope_is_bounded_at_opposite_vectors(sigma):
    a = torch.tensor([[1.0, 0.0]])
    for cosine in (-1.0, -1 + 1e-7, -1.0000001):
        b = torch.tensor([[cosine, 0.0]], requires_grad=True)
        value = geodesic_kernel(a, b, sigma)
        value.sum().backward()
        assert torch.isfinite(b.grad).all()
        assert b.grad[0, 0].item() <= 1e3 * value.item() / sigma**2 * 1.0001


def test_rounding_above_one_is_one():
    a = torch.tensor([[1.0000001, 0.0]], requires_grad=True)
    value = geodesic_kernel(a, torch.tensor([[1.0, 0.0]]), 0.5)
    value.sum().backward()
    assert value.item() == 1.0
    assert a.grad[0, 0].item() == pytest.approx(4.0)


def test_energy_root_is_the_root_and_then_its_tangent():
    floor = ENERGY_FLOOR
    x = torch.tensor([4.0, floor * 1.000001, floor, 0.0, -1e-3], dtype=torch.float64, requires_grad=True)
    y = energy_root(x)
    y.sum().backward()
    assert y[0].item() == 2.0
    assert y[1].item() == pytest.approx(math.sqrt(floor), rel=1e-5)
    assert y[2].item() == pytest.approx(math.sqrt(floor), rel=1e-9)
    assert y[3].item() == pytest.approx(math.sqrt(floor) / 2)
    assert torch.isfinite(x.grad).all()
    assert (x.grad > 0).all()
    assert x.grad[2:].tolist() == pytest.approx([1 / (2 * math.sqrt(floor))] * 3)


def test_energy_of_a_set_with_itself_has_a_finite_gradient():
    a = unit(8, 4, 7)
    b = a.clone().requires_grad_()
    energy = kernel_energy(a, b)
    energy.backward()
    assert abs(energy.item()) <= math.sqrt(ENERGY_FLOOR)
    assert torch.isfinite(b.grad).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(2, 9), st.integers(2, 6), st.integers(0, 10_000))
def test_chordal_energy_is_a_distance(m, n, width, seed):
    a, b = unit(m, width, seed), unit(n, width, seed + 1)
    assert energy_bracket(a, b, kernel="chordal").item() >= -1e-12
    torch.testing.assert_close(energy_bracket(a, b), energy_bracket(b, a))


def test_agreement_and_discrepancy():
    v, t = unit(5, 4, 8), unit(5, 4, 9)
    u, g = agreement(v, t), discrepancy(v, t)
    torch.testing.assert_close(u.norm(dim=-1), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close((u * g).sum(dim=-1), torch.zeros(5, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(u[0], (v[0] + t[0]) / (v[0] + t[0]).norm())
    torch.testing.assert_close(g[0], (v[0] - t[0]) / (v[0] - t[0]).norm())


def test_feature_sets():
    v, t = unit(5, 4, 8), unit(5, 4, 9)
    assert list(FEATURE_SETS["joint"](v, t)) == ["agreement", "discrepancy"]
    assert FEATURE_SETS["singles"](v, t)["text"] is t
    concat = FEATURE_SETS["concat"](v, t)["concat"]
    torch.testing.assert_close(concat, torch.cat([v, t], 1) / math.sqrt(2))


def test_unknown_kernel_names_the_nearest():
    with pytest.raises(PairstillError, match=r"unknown kernel 'geodesik'\. Did you mean 'geodesic'"):
        energy_bracket(unit(2, 2), unit(2, 2), kernel="geodesik")


def test_other_kernels_agree_with_their_definition_on_one_pair():
    a, b = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert chordal_kernel(a, b, 0.5).item() == pytest.approx(math.exp(-2 / 0.5))
    assert laplacian_kernel(a, b, 0.5).item() == pytest.approx(math.exp(-4))


def test_weighted_bce_is_two_means():
    torch.manual_seed(0)
    images, texts = (nn.functional.normalize(torch.randn(4, 3, dtype=torch.float64), dim=-1) for _ in range(2))
    targets = torch.rand(4, 4, dtype=torch.float64)
    near, far = [], []
    for i, j in itertools.product(range(4), repeat=2):
        p = torch.sigmoid(images[i] @ texts[j] / 0.07)
        entry = -(targets[i, j] * p.log() + (1 - targets[i, j]) * (1 - p).log())
        (near if targets[i, j] > 0.5 else far).append(entry)
    expected = (sum(near) / len(near) + sum(far) / len(far)) / 2
    torch.testing.assert_close(weighted_bce(images, texts, targets), expected)


def test_weighted_bce_of_one_kind_only_is_its_mean():
    images = texts = torch.eye(2)
    assert torch.isfinite(weighted_bce(images, texts, torch.ones(2, 2)))
    assert torch.isfinite(weighted_bce(images, texts, torch.zeros(2, 2)))
