import pytest
import torch

from pairstill.distillation import trajectory_matching
from tests.support.distilling import distill
from tests.support.quick_settings import settings_of


def test_it_goes_step_by_step_and_each_picture_matches_its_own_text_only(heads_data, heads_bank, tmp_path, monkeypatch):
    monkeypatch.setattr(trajectory_matching, "unrolled_loss", lambda *_: pytest.fail("the whole unroll is kept"))
    made = distill(heads_data, tmp_path / "set", "tesla", 6, heads_bank, settings=settings_of("tesla"))
    assert torch.equal(made.similarity, torch.eye(6))
