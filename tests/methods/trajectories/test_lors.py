from dataclasses import replace

import pytest
import torch

from pairstill.errors import PairstillError
from pairstill.methods.trajectories import lors, tesla
from pairstill.runtime.files import read_tensors
from tests.support.distilling import distill


@pytest.mark.parametrize("towers", ["heads", "full"])
def test_lors_of_rank_0_with_a_fixed_diagonal_is_tesla(towers, request, tmp_path):
    data, bank = request.getfixturevalue(f"{towers}_data"), request.getfixturevalue(f"{towers}_bank")
    common = tesla.Settings(iterations=2, check_every=2, inner_steps=2, inner_batch=4, image_lr=1.0, text_lr=1.0)
    as_tesla = distill(data, tmp_path / "tesla", "tesla", 6, bank, settings=common)

    def last(name):  # whatever validation chose, what the last iteration made
        return read_tensors(tmp_path / name / "run/checkpoint.safetensors")

    same = lors.Settings(**vars(common), rank=0, similarity_lr=0.0)
    as_lors = distill(data, tmp_path / "lors", "lors", 6, bank, settings=same)
    assert torch.equal(last("tesla")["images"], last("lors")["images"])
    assert torch.equal(last("tesla")["texts"], last("lors")["texts"])
    assert torch.equal(as_tesla.images, as_lors.images)
    assert torch.equal(as_tesla.similarity, as_lors.similarity)
    assert as_tesla.info["student"] == as_lors.info["student"]
    learnt = lors.Settings(**vars(common), rank=2, similarity_lr=0.1)
    distill(data, tmp_path / "learnt", "lors", 6, bank, settings=learnt)
    assert last("learnt")["right"].any()
    assert not torch.equal(last("learnt")["diagonal"], torch.ones(6))


def test_settings_that_make_no_sense_are_said():
    zero, negative = ("inner_steps", "student_lr"), ("image_lr", "text_lr", "lr_lr", "rank", "similarity_lr")
    for bad in ({"inner_batch": 1}, {"momentum": 1.0}, *({n: 0} for n in zero), *({n: -1} for n in negative)):
        with pytest.raises(PairstillError, match=next(iter(bad))):
            replace(lors.Settings(), **bad)
