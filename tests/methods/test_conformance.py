"""What every method promises, tried on each of them. A new method adds its quick values to `SETTINGS`."""

from dataclasses import replace

import pytest

from pairstill.evaluation.scoring import evaluate
from pairstill.methods import METHODS
from pairstill.training.protocols import protocol_named
from tests.conftest import hidden_test_split
from tests.support.distilling import QUICK, distill, files_of

MATCHING = {"iterations": 3, "check_every": 3, "inner_steps": 2, "inner_batch": 4, "image_lr": 1.0, "text_lr": 1.0}
SETTINGS = {
    "mdm": {"iterations": 6, "check_every": 3, "image_lr": 10.0, "text_lr": 1.0, "real_batch": 16},
    "dm": {"iterations": 4, "check_every": 4, "image_lr": 10.0, "text_lr": 1.0, "real_batch": 16},
    "herding": {"epochs": 1},
    "k-center": {"epochs": 1},
    "forgetting": {"epochs": 2},
    "mtt-vl": MATCHING,
    "tesla": MATCHING,
    "lors": {**MATCHING, "similarity_lr": 0.1},
    "rehearsal": {
        "images_per_step": 4,
        "iterations": 4,
        "check_every": 2,
        "inner_epochs": 3,
        "student_width": 8,
        "real_batch": 16,
    },
    "edge": {"epochs": 1, "batch_size": 64, "tuning_size": 16, "sampling_steps": 2},
}
"""Values of each method with which it takes a second."""


def settings_of(method):
    return METHODS[method].settings(**SETTINGS.get(method, {}))


SHORT = settings_of("mdm")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("towers", ["heads", "full"])
def test_every_method_keeps_the_contract(method, towers, request, tmp_path):
    data, bank = (request.getfixturevalue(f"{towers}_{what}") for what in ("data", "bank"))
    settings = settings_of(method)
    if method == "edge":
        settings = replace(settings, **request.getfixturevalue("tiny_diffusion"))
    if towers == "full" and method == "mdm":
        settings = replace(SHORT, check_every=6)
    with hidden_test_split():
        made = distill(data, tmp_path / "a", method, 8, bank, settings=settings)
    assert made.images.shape == (8, 3, 32, 32)
    assert made.texts.shape == (8, 384)
    assert len(made.captions) == 8
    assert set(made.captions[0]) <= set(data.dataset.captions)
    assert made.info["method"] == method
    assert made.info["dataset"]["fingerprint"] == data.dataset.fingerprint
    distill(data, tmp_path / "b", method, 8, bank, settings=settings)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    row = evaluate(data.encoded(), made, protocol_named("clean"), seeds=1, recipe=QUICK)
    assert 0 < row.mean <= 100
