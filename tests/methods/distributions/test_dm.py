import itertools
import json

import pytest
import torch
import torch.nn.functional as F

from pairstill import api
from pairstill.methods.distributions import dm
from pairstill.runtime.files import read_tensors
from pairstill.training.training_recipe import Recipe

MATCHES = ("modalities", "joint", "both")


def unit_pairs(seed, count, width=5):
    random = torch.Generator().manual_seed(seed)
    return tuple(
        F.normalize(torch.randn(count, width, generator=random, dtype=torch.float64), dim=-1) for _ in range(2)
    )


def total(real, synthetic, match):
    return sum(dm.mean_gaps(real, synthetic, match).values())


def slow_feature(name, image, text):
    if name in ("image", "text"):
        return image if name == "image" else text
    sign = 1 if name == "agreement" else -1
    vector = [v + sign * t for v, t in zip(image, text, strict=True)]
    length = sum(x * x for x in vector) ** 0.5
    return [x / length for x in vector]


def slow_gap(name, real, synthetic):
    means = []
    for images, texts in (real, synthetic):
        features = [slow_feature(name, *pair) for pair in zip(images.tolist(), texts.tolist(), strict=True)]
        means.append([sum(column) / len(features) for column in zip(*features, strict=True)])
    return sum((a - b) ** 2 for a, b in zip(*means, strict=True))


@pytest.mark.parametrize(
    ("match", "names"),
    [
        ("modalities", ["image", "text"]),
        ("joint", ["agreement", "discrepancy"]),
        ("both", ["image", "text", "agreement", "discrepancy"]),
    ],
)
def test_the_loss_is_the_squared_distance_of_means(match, names):
    real, synthetic = unit_pairs(0, 9), unit_pairs(1, 4)
    gaps = dm.mean_gaps(real, synthetic, match)
    assert list(gaps) == names
    for name, gap in gaps.items():
        assert gap.item() == pytest.approx(slow_gap(name, real, synthetic), rel=1e-12)


@pytest.mark.parametrize("match", MATCHES)
def test_the_gradient_is_that_of_finite_differences(match):
    real, (images, texts) = unit_pairs(2, 6), unit_pairs(3, 3)
    images, texts = images.requires_grad_(), texts.requires_grad_()
    gradients = torch.autograd.grad(total(real, (images, texts), match), (images, texts))
    step = 1e-6
    for side, gradient in enumerate(gradients):
        for cell in itertools.product(*map(range, gradient.shape)):
            ends = []
            for sign in (1, -1):
                moved = [images.detach().clone(), texts.detach().clone()]
                moved[side][cell] += sign * step
                ends.append(total(real, tuple(moved), match).item())
            assert gradient[cell].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5, abs=1e-8)


def test_only_the_joint_features_know_who_is_paired_with_whom():
    images, texts = unit_pairs(4, 6)
    shuffled = images, texts.roll(1, dims=0)
    assert total((images, texts), shuffled, "modalities").item() == pytest.approx(0, abs=1e-20)
    assert total((images, texts), shuffled, "joint") > 1e-3


@pytest.mark.parametrize("match", MATCHES)
def test_dm_moves_pictures_and_texts_and_lowers_its_loss(match, heads_data, heads_bank, tmp_path):
    settings = dm.Settings(
        iterations=30, check_every=30, teacher="fine-tuned", real_batch=192, match=match, image_lr=10.0
    )
    made = api.distill(heads_data, tmp_path / "set", "dm", 8, heads_bank, settings=settings, student=Recipe(epochs=1))
    start = api.distill(heads_data, tmp_path / "start", "kmeans", 8)
    last = read_tensors(tmp_path / "set/run/checkpoint.safetensors")  # whatever validation chose
    assert not torch.equal(start.images, last["images"])
    assert not torch.equal(start.texts, last["texts"])
    assert made.info["settings"]["match"] == match
    events = [json.loads(line) for line in (tmp_path / "set/run/events.jsonl").read_text().splitlines()]
    losses = [event["loss"] for event in events if event["kind"] == "step"]
    assert len(losses) == 30
    assert sum(losses[-5:]) < sum(losses[:5])
