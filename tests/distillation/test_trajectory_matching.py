from dataclasses import replace

import pytest
import torch

from pairstill.distillation import trajectory_matching
from pairstill.features.encoded_dataset import EncodedDataset
from pairstill.methods import METHODS
from pairstill.methods.trajectories import tesla
from pairstill.runtime.files import read_tensors
from pairstill.runtime.seeds import generator
from pairstill.sets.initial_record import read_initial_pairs
from pairstill.training.training_recipe import Recipe
from tests.support.distilling import distill


@pytest.mark.parametrize("towers", ["heads", "full"])
def test_only_pictures_that_the_student_saw_are_passed_and_move(towers, request, tmp_path, monkeypatch):
    data, bank = (request.getfixturevalue(f"{towers}_{what}") for what in ("data", "bank"))
    passed, original = [], EncodedDataset.through_front
    monkeypatch.setattr(EncodedDataset, "through_front", lambda self, x: passed.append(len(x)) or original(self, x))
    short = tesla.Settings(iterations=1, check_every=2, inner_steps=2, inner_batch=2, image_lr=1.0, text_lr=1.0)
    distill(data, tmp_path / "few", "tesla", 6, bank, settings=short)
    first, last = read_initial_pairs(tmp_path / "few/run"), read_tensors(tmp_path / "few/run/checkpoint.safetensors")
    before = data.encoded().image_encoder.normalise(first.pictures)
    moved = [(a - b).abs().max() > 1e-4 for a, b in zip(last["images"], before, strict=True)]
    assert passed == [4]
    assert sum(moved) == 4
    seen = [not torch.equal(a, b) for a, b in zip(last["texts"], first.texts, strict=True)]
    assert seen == moved


@pytest.mark.parametrize("method", ["mtt-vl", "tesla"])
def test_texts_step_down_the_gradient_of_the_matching_loss(method, heads_data, heads_bank, tmp_path, monkeypatch):
    """Of students that are matched with the temperature of those that are scored."""
    gradients, temperatures = [], []
    name = "unrolled_loss" if method == "mtt-vl" else "stepwise_loss"

    def as_known(student, segment, data, batches):
        temperatures.append(student.temperature)
        gradients.append(torch.randn(data.texts.shape, generator=generator(0)))
        loss = (data.texts * gradients[-1]).sum() + 0 * (data.inputs.sum() + data.image_lr + data.text_lr)
        if method == "tesla":
            loss.backward()
        return loss

    monkeypatch.setattr(trajectory_matching, name, as_known)
    settings = METHODS[method].settings(iterations=1, check_every=1, inner_batch=4, image_lr=1.0, text_lr=0.5)
    recipe = Recipe(epochs=1, batch_size=16, temperature=0.2)
    distill(heads_data, tmp_path / "set", method, 6, heads_bank, settings=settings, student=recipe)
    moved = read_tensors(tmp_path / "set/run/checkpoint.safetensors")["texts"]
    torch.testing.assert_close(moved, read_initial_pairs(tmp_path / "set/run").texts - 0.5 * gradients[0])
    assert temperatures == [0.2]


def test_towers_begin_with_step_sizes_of_their_own_and_may_keep_what_they_learnt_to_themselves(
    heads_data, heads_bank, tmp_path
):
    settings = tesla.Settings(
        iterations=1, check_every=1, inner_steps=2, inner_batch=4, lr_lr=0.0, student_lr=0.02, student_text_lr=0.3
    )
    made = distill(heads_data, tmp_path / "shipped", "tesla", 6, heads_bank, settings=settings)
    assert made.info["student"] == pytest.approx({"lr": 0.02, "text_lr": 0.3})
    own = distill(
        heads_data, tmp_path / "own", "tesla", 6, heads_bank, settings=replace(settings, ship_student_lr=False)
    )
    assert own.info["student"] == {}
    last = [read_tensors(tmp_path / name / "run/checkpoint.safetensors") for name in ("shipped", "own")]
    assert torch.equal(last[0]["images"], last[1]["images"])
    recalls = [made.info["chosen"]["selection_recall"], own.info["chosen"]["selection_recall"]]
    assert recalls[0] != recalls[1]
