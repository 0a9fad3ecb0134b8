"""Augmentation on tensors: the experts' crops, flips and RandAugment, and the students' DSA."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

RANDAUGMENT_OPERATIONS = 2
RANDAUGMENT_MAGNITUDE = 5 / 10
CROP_AREA = (0.5, 1.0)


def expert_augmentation(images: Tensor, random: torch.Generator) -> Tensor:
    """RandomResizedCrop(0.5-1), flip and RandAugment(2, 5) on images in 0..1, [N, 3, S, S]."""
    images = warp(images, crop_and_flip(len(images), random))
    for _ in range(RANDAUGMENT_OPERATIONS):
        images = randaugment_operation(images, random)
    return images


def crop_and_flip(count: int, random: torch.Generator) -> Tensor:
    """Random crops of 50-100 % of the area, aspect 3/4 to 4/3, half of them mirrored, as maps [N, 2, 3]."""
    area = torch.empty(count).uniform_(*CROP_AREA, generator=random)
    aspect = torch.empty(count).uniform_(math.log(3 / 4), math.log(4 / 3), generator=random).exp()
    width, height = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
    x = (1 - width) * torch.empty(count).uniform_(-1, 1, generator=random)
    y = (1 - height) * torch.empty(count).uniform_(-1, 1, generator=random)
    mirror = torch.where(torch.rand(count, generator=random) < 0.5, -1.0, 1.0)
    return _maps(count, a=width * mirror, d=height, x=x, y=y)


def mirrored(count: int) -> Tensor:
    """The whole image, mirrored, as maps [N, 2, 3]."""
    return _maps(count, a=-1.0)


def _maps(
    count: int,
    a: Tensor | float = 1.0,
    b: Tensor | float = 0.0,
    c: Tensor | float = 0.0,
    d: Tensor | float = 1.0,
    x: Tensor | float = 0.0,
    y: Tensor | float = 0.0,
) -> Tensor:
    """Affine maps [[a, b, x], [c, d, y]] for a whole batch, [N, 2, 3]."""
    device = next((value.device for value in (a, b, c, d, x, y) if isinstance(value, Tensor)), None)
    maps = torch.zeros(count, 2, 3, device=device)
    maps[:, 0, 0], maps[:, 0, 1], maps[:, 0, 2] = a, b, x
    maps[:, 1, 0], maps[:, 1, 1], maps[:, 1, 2] = c, d, y
    return maps


def warp(images: Tensor, maps: Tensor, padding: str = "zeros") -> Tensor:
    """Images [N, 3, S, S], each read through its own map."""
    grid = F.affine_grid(maps.to(images), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode=padding, align_corners=False)


def randaugment_operation(images: Tensor, random: torch.Generator) -> Tensor:
    """One operation of RandAugment for each image, drawn for each alone; magnitude 5 of 10."""
    names = list(OPERATIONS)
    drawn = torch.randint(len(names), (len(images),), generator=random)
    signs = torch.where(torch.rand(len(images), generator=random) < 0.5, -1.0, 1.0) * RANDAUGMENT_MAGNITUDE
    drawn, signs = drawn.to(images.device), signs.to(images)
    result = images.clone()
    for number, name in enumerate(names):
        rows = (drawn == number).nonzero()[:, 0]
        if len(rows):
            result[rows] = OPERATIONS[name](images[rows], signs[rows])
    return result


def _brightness(images: Tensor, strength: Tensor) -> Tensor:
    return (images * (1 + 0.9 * strength.reshape(-1, 1, 1, 1))).clamp(0, 1)


def _sharpness(images: Tensor, strength: Tensor) -> Tensor:
    weights = torch.tensor([[1.0, 1.0, 1.0], [1.0, 5.0, 1.0], [1.0, 1.0, 1.0]]).to(images) / 13
    smooth = F.conv2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), weights.expand(3, 1, 3, 3), groups=3)
    return (images + 0.9 * strength.reshape(-1, 1, 1, 1) * (images - smooth)).clamp(0, 1)


def _autocontrast(images: Tensor, strength: Tensor) -> Tensor:
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    return torch.where(high > low, (images - low) / (high - low).clamp(min=1e-6), images)


def _equalize(images: Tensor, strength: Tensor) -> Tensor:
    """Histogram equalisation of each channel, 256 levels."""
    flat = images.flatten(2)
    levels = (flat * 255).round().long().clamp(0, 255)
    counts = flat.new_zeros(*levels.shape[:2], 256).scatter_add_(2, levels, torch.ones_like(flat))
    cumulative = counts.cumsum(dim=2)
    lowest = cumulative.masked_fill(cumulative == 0, torch.inf).amin(dim=2, keepdim=True)
    table = ((cumulative - lowest) / (flat.shape[2] - lowest).clamp(min=1)).clamp(0, 1)
    return table.gather(2, levels).reshape_as(images)


def _geometric(build: Callable[[int, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda images, strength: warp(images, build(len(images), strength))


def _rotation(count: int, strength: Tensor) -> Tensor:
    angle = strength * math.radians(30)
    return _maps(count, a=angle.cos(), b=-angle.sin(), c=angle.sin(), d=angle.cos())


OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "identity": lambda images, strength: images,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "brightness": _brightness,
    "sharpness": _sharpness,
    "shear-x": _geometric(lambda count, strength: _maps(count, b=0.3 * strength)),
    "shear-y": _geometric(lambda count, strength: _maps(count, c=0.3 * strength)),
    "translate-x": _geometric(lambda count, strength: _maps(count, x=0.6 * strength)),
    "translate-y": _geometric(lambda count, strength: _maps(count, y=0.6 * strength)),
    "rotate": _geometric(_rotation),
}


def dsa(images: Tensor, random: torch.Generator) -> Tensor:
    """Differentiable siamese augmentation (Zhao and Bilen, 2021): colour, crop, cut-out, flip, scale, rotation.

    Works on normalised pixels [N, 3, S, S]; each image draws its own parameters; differentiable in the pixels.
    """
    return _cutout(warp(_colour(images, random), _dsa_maps(len(images), random)), random)


def _colour(images: Tensor, random: torch.Generator) -> Tensor:
    """Brightness in +-0.5, saturation in 0..2, contrast in 0.5..1.5."""
    count = len(images)

    def draw(low: float, high: float) -> Tensor:
        return torch.empty(count, 1, 1, 1).uniform_(low, high, generator=random).to(images)

    images = images + draw(-0.5, 0.5)
    grey = images.mean(dim=1, keepdim=True)
    images = grey + (images - grey) * draw(0, 2)
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    return mean + (images - mean) * draw(0.5, 1.5)


def _dsa_maps(count: int, random: torch.Generator) -> Tensor:
    """Shift by up to 1/8 of the side, scale by up to 1.2, rotate by up to 15 degrees, mirror half."""

    def draw(low: float, high: float) -> Tensor:
        return torch.empty(count).uniform_(low, high, generator=random)

    angle = draw(-math.radians(15), math.radians(15))
    sx, sy = draw(1 / 1.2, 1.2), draw(1 / 1.2, 1.2)
    mirror = torch.where(torch.rand(count, generator=random) < 0.5, -1.0, 1.0)
    x, y = draw(-0.25, 0.25), draw(-0.25, 0.25)
    return _maps(count, sx * angle.cos() * mirror, -angle.sin(), angle.sin() * mirror, sy * angle.cos(), x, y)


def _cutout(images: Tensor, random: torch.Generator) -> Tensor:
    """A square of half the side set to zero, at a random place that may lie partly outside."""
    count, _, height, width = images.shape
    half = max(height // 4, 1)
    x = torch.randint(width, (count, 1, 1), generator=random).to(images.device)
    y = torch.randint(height, (count, 1, 1), generator=random).to(images.device)
    columns = torch.arange(width, device=images.device).reshape(1, 1, -1)
    rows = torch.arange(height, device=images.device).reshape(1, -1, 1)
    hole = ((columns - x).abs() < half) & ((rows - y).abs() < half)
    return images * ~hole.unsqueeze(1)
