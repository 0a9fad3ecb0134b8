from dataclasses import replace

import pytest
import torch

from pairstill import api
from pairstill.errors import PairstillError
from pairstill.evaluation.scoring import as_read_by, evaluate, evaluate_full, with_nearest_captions
from pairstill.sets.distilled_set import DistilledSet, load
from pairstill.training.protocols import PROTOCOLS, protocol_named
from pairstill.training.training_recipe import Recipe
from tests.support.distilling import QUICK


def test_five_seeds_give_a_mean_and_its_deviation(heads_data, tmp_path):
    made = api.distill(heads_data, tmp_path / "set", "random", 8)
    row = evaluate(heads_data.encoded(), made, protocol_named("clean"), 3, recipe=QUICK)
    singles = [evaluate(heads_data.encoded(), made, protocol_named("clean"), n, recipe=QUICK).mean for n in (1, 2, 3)]
    each = [singles[0], 2 * singles[1] - singles[0], 3 * singles[2] - 2 * singles[1]]
    assert row.mean == pytest.approx(sum(each) / 3)
    assert row.mean_std == pytest.approx(torch.tensor(each, dtype=torch.float64).std().item())
    assert row.mean == pytest.approx(sum(getattr(row, m) for m in ("ir1", "ir5", "ir10", "tr1", "tr5", "tr10")) / 6)


def test_full_set_trains_on_every_pair(heads_data):
    row = evaluate_full(heads_data.encoded(), protocol_named("clean"), 1, recipe=QUICK)
    assert row.pairs == len(heads_data.encoded().split("train").pairs.links) == 192


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_scores_full_towers(name, full_data, tmp_path):
    made = api.distill(full_data, tmp_path / "set", "random", 6, protocol=name)
    row = evaluate(full_data.encoded(), made, protocol_named(name), 1, recipe=QUICK)
    assert row.protocol == name


def test_best_of_eleven_is_never_below_the_last_epoch(full_data, tmp_path):
    made = api.distill(full_data, tmp_path / "set", "random", 6)
    encoded, recipe = full_data.encoded(), Recipe(epochs=10, batch_size=16)
    lors = protocol_named("lors")
    last = evaluate(encoded, made, replace(lors, student="last"), 1, recipe=recipe).mean
    assert evaluate(encoded, made, lors, 1, recipe=recipe).mean >= last


def test_step_sizes_that_a_set_learnt_come_before_the_recipes_and_this_is_said(heads_data, tmp_path, capfd):
    made = api.distill(heads_data, tmp_path / "set", "random", 8)
    learnt = replace(made, info={**made.info, "student": {"lr": 0.3, "text_lr": 0.02}})
    encoded, clean = heads_data.encoded(), protocol_named("clean")
    own = evaluate(encoded, learnt, clean, 1, recipe=replace(QUICK, lr=7.0))
    assert "the set's own step sizes are used (0.3 for images, 0.02 for texts)" in capfd.readouterr().err
    assert own.mean == evaluate(encoded, made, clean, 1, recipe=replace(QUICK, lr=0.3, text_lr=0.02)).mean


def test_towers_that_can_not_read_a_set_are_refused(heads_data):
    images, texts = torch.zeros(2, 3, 32, 32), torch.zeros(2, 10)
    with pytest.raises(PairstillError, match="texts are 10 wide"):
        evaluate(heads_data.encoded(), DistilledSet(images, texts, [["a"], ["b"]]), protocol_named("clean"), 1)
    with pytest.raises(PairstillError, match="images are 16 px, and these towers read 32 px"):
        wrong = DistilledSet(torch.zeros(2, 3, 16, 16), torch.zeros(2, 384), [["a"], ["b"]])
        evaluate(heads_data.encoded(), wrong, protocol_named("clean"), 1)
    with pytest.raises(PairstillError, match="--seeds must be at least 1"):
        evaluate_full(heads_data.encoded(), protocol_named("clean"), 0)


def test_pictures_are_read_in_the_other_encoders_normalisation(heads_data, tmp_path):
    encoded = heads_data.encoded()
    made = api.distill(heads_data, tmp_path / "set", "random", 4)
    assert as_read_by(encoded, made) is made.images
    other = {**made.info, "normalisation": {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7]}}
    mean, std = (torch.tensor(other["normalisation"][key]).reshape(1, 3, 1, 1) for key in ("mean", "std"))
    shifted = (encoded.image_encoder.denormalise(made.images) - mean) / std
    again = as_read_by(encoded, replace(made, images=shifted, info=other))
    torch.testing.assert_close(again, made.images, rtol=1e-4, atol=1e-5)


def test_nearest_captions_are_read_by_the_students_encoder(heads_data, tmp_path):
    api.distill(heads_data, tmp_path / "set", "random", 4)
    made, encoded = load(tmp_path / "set"), heads_data.encoded()
    same = with_nearest_captions(encoded, made)
    torch.testing.assert_close(same.texts, made.texts)  # a real pair's nearest caption is its own
    assert torch.equal(same.images, made.images)
