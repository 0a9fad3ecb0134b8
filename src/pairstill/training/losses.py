"""The paper's objective as pure functions of tensors: InfoNCE, kernels, kernel energy, joint features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pairstill.errors import unknown

TEMPERATURE = 0.07
"""The paper's: cosines are divided by it."""

ENERGY_FLOOR = 1e-6
"""Below this bracket the energy's square root is continued by its tangent: see `energy_root`."""

_MAX_ANGLE_OVER_SINE = 1e3
"""Bound of phi / sin(phi), reached only within 0.2 degrees of opposite vectors, where k itself is ~1e-9."""


def info_nce(images: Tensor, texts: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Bidirectional InfoNCE with identity targets (Eq. 3).

    Args:
        images: Unit vectors, [N, d].
        texts: Unit vectors, [N, d]; row j belongs to row j of `images`.
        temperature: Divides the cosines.
    """
    logits = images @ texts.T / temperature
    targets = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)) / 2


def weighted_bce(images: Tensor, texts: Tensor, similarity: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Binary cross-entropy of sigmoid(cosine / temperature) against soft targets, as TESLA and LoRS train with.

    The mean over entries with a target above 1/2 and the mean over the others, averaged, so that N matches weigh as
    much as N(N - 1) mismatches; where a kind has no entry, the other's mean alone.

    Args:
        images: Unit vectors, [N, d].
        texts: Unit vectors, [N, d].
        similarity: Targets, [N, N].
        temperature: Divides the cosines.
    """
    entries = F.binary_cross_entropy_with_logits(images @ texts.T / temperature, similarity, reduction="none")
    close = similarity > 0.5
    means = [entries[kind].mean() for kind in (close, ~close) if kind.any()]
    return torch.stack(means).mean()


class _GeodesicKernel(torch.autograd.Function):
    """k(c) = exp(-arccos(c)^2 / 2 sigma^2) of a cosine c, with its own slope.

    dk/dc = k * phi / (sigma^2 sin phi), phi = arccos c. The factor phi / sin phi tends to 1 at c = 1, although
    arccos' own derivative is infinite there, so autograd through arccos would give NaN and clamping c would
    throw away the gradient of near-duplicates. At c = -1 the true slope is infinite; it is bounded.
    """

    @staticmethod
    def forward(ctx: Any, cosines: Tensor, sigma: float) -> Tensor:
        cosines = cosines.clamp(-1, 1)
        kernel = torch.exp(-(torch.acos(cosines) ** 2) / (2 * sigma**2))
        ctx.save_for_backward(cosines, kernel)
        ctx.sigma = sigma
        return kernel

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        cosines, kernel = ctx.saved_tensors
        sines = torch.sqrt((1 - cosines) * (1 + cosines))
        ratio = torch.where(sines > 0, torch.acos(cosines) / sines, torch.ones_like(sines))
        ratio = torch.where(cosines <= -1, torch.full_like(ratio, _MAX_ANGLE_OVER_SINE), ratio)
        return gradients[0] * kernel * ratio.clamp(max=_MAX_ANGLE_OVER_SINE) / ctx.sigma**2, None


def geodesic_kernel(a: Tensor, b: Tensor, sigma: float) -> Tensor:
    """exp(-arccos(<a, b>)^2 / 2 sigma^2) for unit vectors a [m, d], b [n, d]; returns [m, n] (Eq. 8)."""
    kernel: Tensor = _GeodesicKernel.apply(a @ b.T, sigma)  # type: ignore[no-untyped-call]
    return kernel


def chordal_kernel(a: Tensor, b: Tensor, sigma: float) -> Tensor:
    """exp(-(2 - 2<a, b>) / 2 sigma^2) for unit vectors a [m, d], b [n, d]; returns [m, n]."""
    return torch.exp(-(1 - a @ b.T) / sigma**2)


def laplacian_kernel(a: Tensor, b: Tensor, sigma: float) -> Tensor:
    """exp(-|a - b|_1 / sigma) for vectors a [m, d], b [n, d]; returns [m, n]."""
    return torch.exp(-torch.cdist(a, b, p=1) / sigma)


KERNELS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "geodesic": geodesic_kernel,
    "chordal": chordal_kernel,
    "laplacian": laplacian_kernel,
}


def energy_bracket(a: Tensor, b: Tensor, sigma: float = 0.5, kernel: str = "geodesic") -> Tensor:
    """Mean k(A, A) + mean k(B, B) - 2 mean k(A, B), over all pairs, the diagonal included (Eq. 9, in brackets)."""
    if kernel not in KERNELS:
        raise unknown("kernel", kernel, KERNELS)
    k = KERNELS[kernel]
    return k(a, a, sigma).mean() + k(b, b, sigma).mean() - 2 * k(a, b, sigma).mean()


def energy_root(bracket: Tensor, floor: float = ENERGY_FLOOR) -> Tensor:
    """The square root, continued below `floor` by its tangent there.

    The root's slope is infinite at 0, and the bracket can come out <= 0 because the geodesic kernel is not
    positive definite. The tangent keeps value and gradient finite and the gradient's direction right; callers
    that log count the brackets at or below `floor`.
    """
    root = torch.sqrt(bracket.clamp(min=floor))
    tangent = (bracket - floor) / (2 * floor**0.5) + floor**0.5
    return torch.where(bracket > floor, root, tangent)


def kernel_energy(a: Tensor, b: Tensor, sigma: float = 0.5, kernel: str = "geodesic") -> Tensor:
    """Geodesic kernel energy of two sets of unit vectors, GKE(A, B) (Eq. 9). a: [m, d], b: [n, d]."""
    return energy_root(energy_bracket(a, b, sigma, kernel))


def agreement(images: Tensor, texts: Tensor) -> Tensor:
    """U = norm(v + t) for unit vectors v, t [N, d] (Eq. 6)."""
    return F.normalize(images + texts, dim=-1)


def discrepancy(images: Tensor, texts: Tensor) -> Tensor:
    """G = norm(v - t) for unit vectors v, t [N, d] (Eq. 6)."""
    return F.normalize(images - texts, dim=-1)


def _joint(images: Tensor, texts: Tensor) -> dict[str, Tensor]:
    return {"agreement": agreement(images, texts), "discrepancy": discrepancy(images, texts)}


def _singles(images: Tensor, texts: Tensor) -> dict[str, Tensor]:
    return {"image": images, "text": texts}


def _concat(images: Tensor, texts: Tensor) -> dict[str, Tensor]:
    return {"concat": F.normalize(torch.cat([images, texts], dim=-1), dim=-1)}


FEATURE_SETS: dict[str, Callable[[Tensor, Tensor], dict[str, Tensor]]] = {
    "joint": _joint,
    "singles": _singles,
    "concat": _concat,
}
"""What is matched: the paper's agreement and discrepancy, each modality alone, or both concatenated."""
