import pytest

from pairstill.distillation import trajectory_matching
from pairstill.runtime.files import read_tensors
from tests.support.distilling import distill
from tests.support.quick_settings import settings_of


def test_it_goes_through_the_whole_unroll_and_learns_the_students_step_sizes(
    heads_data, heads_bank, tmp_path, monkeypatch
):
    monkeypatch.setattr(trajectory_matching, "stepwise_loss", lambda *_: pytest.fail("taken step by step"))
    made = distill(heads_data, tmp_path / "set", "mtt-vl", 6, heads_bank, settings=settings_of("mtt-vl"))
    assert made.similarity is None  # students train with InfoNCE
    assert made.info["student"].keys() == {"lr", "text_lr"}
    last = read_tensors(tmp_path / "set/run/checkpoint.safetensors")
    assert 0.1 not in (last["student_image_lr"].item(), last["student_text_lr"].item())
