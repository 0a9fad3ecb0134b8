"""What every method promises, tried on each of them, with the settings of `tests/support/quick_settings.py`."""

from dataclasses import replace

import pytest

from pairstill.evaluation.scoring import evaluate
from pairstill.methods import METHODS
from pairstill.training.protocols import protocol_named
from tests.conftest import hidden_test_split
from tests.support.distilling import QUICK, distill, files_of
from tests.support.quick_settings import SHORT, settings_of


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
