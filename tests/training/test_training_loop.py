import math

import pytest
import torch

from pairstill.errors import PairstillError
from pairstill.features.training_pairs import TensorInputs, TrainingPairs
from pairstill.training.student_training import Candidate, as_training_pairs, embed, model_recall, train_student
from pairstill.training.training_loop import batches, one_link_per_picture, train
from pairstill.training.training_recipe import EXPERT_RECIPE, STUDENT_RECIPE, Recipe


def test_published_recipes():
    assert (EXPERT_RECIPE.epochs, EXPERT_RECIPE.lr, EXPERT_RECIPE.momentum, EXPERT_RECIPE.weight_decay) == (
        10,
        0.1,
        0,
        0,
    )
    assert (STUDENT_RECIPE.epochs, STUDENT_RECIPE.lr, STUDENT_RECIPE.momentum) == (100, 0.1, 0.9)
    assert (STUDENT_RECIPE.weight_decay, STUDENT_RECIPE.decay, STUDENT_RECIPE.batch_size) == (5e-4, 0.1, 128)


def test_batches_visit_every_row_once():
    seen = torch.cat(list(batches(10, 4, torch.Generator().manual_seed(0))))
    assert sorted(seen.tolist()) == list(range(10))
    assert len(torch.cat(list(batches(9, 4, torch.Generator().manual_seed(0))))) == 8  # one left alone is dropped


@pytest.mark.parametrize("kind", ["heads_data", "full_data"])
def test_training_learns_and_repeats_to_the_bit(kind, request):
    encoded = request.getfixturevalue(kind).encoded()
    pairs = encoded.split("train").pairs
    recipe = Recipe(epochs=6, lr=0.1, batch_size=32)
    models = [encoded.new_model(1) for _ in range(2)]
    before = model_recall(models[0], encoded.split("train")).mean
    for model in models:
        train(model, pairs, recipe, seed=2)
    assert model_recall(models[0], encoded.split("train")).mean > before
    first, second = (dict(model.named_parameters()) for model in models)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_step_size_falls_at_half(heads_data, monkeypatch):
    encoded = heads_data.encoded()
    seen = []
    original = torch.optim.SGD.step
    monkeypatch.setattr(
        torch.optim.SGD, "step", lambda self, *a: (seen.append(self.param_groups[0]["lr"]), original(self, *a))[1]
    )
    pairs = TrainingPairs(TensorInputs(torch.randn(8, encoded.image_encoder.width)), torch.randn(8, 384), _identity(8))
    train(encoded.new_model(0), pairs, Recipe(epochs=4, lr=0.2, decay=0.1), seed=0)
    assert seen == pytest.approx([0.2, 0.2, 0.02, 0.02])


def _identity(count):
    return torch.stack([torch.arange(count), torch.arange(count)], 1)


def test_one_caption_per_picture_is_drawn_anew():
    links = torch.stack([torch.arange(6).repeat_interleave(5), torch.arange(30)], 1)
    drawn = [one_link_per_picture(links, torch.Generator().manual_seed(seed)) for seed in range(20)]
    for chosen in drawn:
        assert sorted(chosen[:, 0].tolist()) == list(range(6))
        assert torch.equal(chosen[:, 1] // 5, chosen[:, 0])
    assert len({tuple(chosen[:, 1].tolist()) for chosen in drawn}) > 15


def test_divergence_is_said(heads_data):
    encoded = heads_data.encoded()
    with pytest.raises(PairstillError, match=r"training diverged in epoch \d+: the loss was .* Lower the lr"):
        train(encoded.new_model(0), encoded.split("train").pairs, Recipe(epochs=3, lr=1e30), seed=0)


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": 0},
        {"batch_size": 1},
        {"lr": 0.0},
        {"text_lr": -0.1},
        {"momentum": 1.0},
        {"momentum": -0.5},
        {"weight_decay": -1e-4},
        {"decay": 0.0},
        {"temperature": 0.0},
        {"temperature": math.nan},
    ],
)
def test_a_nonsense_recipe_is_refused(change):
    ((name, value),) = change.items()
    with pytest.raises(PairstillError, match=f"{name} of a training recipe must be .*, not {value}"):
        Recipe(**{"epochs": 1, **change})


def test_students_differ_by_seed_and_agree_with_themselves(heads_data):
    encoded = heads_data.encoded()
    train_split = encoded.split("train")
    rows = train_split.pairs.links[:20]
    images = encoded.pictures(train_split.images[rows[:, 0]])
    pairs = as_training_pairs(encoded, Candidate(images, train_split.pairs.texts[rows[:, 1]]))
    recipe = Recipe(epochs=10, momentum=0.9, batch_size=20)
    trials = [train_student(encoded, pairs, encoded.split("test"), seed, recipe) for seed in (1, 1, 2)]
    assert trials[0].last == trials[1].last
    assert trials[0].last != trials[2].last
    assert trials[0].recalls.keys() == {10}


def test_eleven_evaluations_start_before_training(heads_data):
    encoded = heads_data.encoded()
    pairs = TrainingPairs(TensorInputs(torch.randn(8, encoded.image_encoder.width)), torch.randn(8, 384), _identity(8))
    trial = train_student(encoded, pairs, encoded.split("test"), 0, Recipe(epochs=20), evaluations=11)
    assert sorted(trial.recalls) == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
    assert trial.best.mean == max(recall.mean for recall in trial.recalls.values())


def test_real_pairs_as_synthetic_pixels_have_the_cached_features(heads_data):
    encoded = heads_data.encoded()
    split = encoded.split("train")
    inputs = encoded.to_inputs(encoded.pictures(split.images[:7]))
    torch.testing.assert_close(inputs, encoded.image_features[split.images[:7]], rtol=1e-4, atol=1e-5)


def test_embed_leaves_the_model_as_it_was(full_data):
    encoded = full_data.encoded()
    model = encoded.new_model(0)
    split = encoded.split("val")
    images, texts = embed(model, split.pairs.inputs, split.pairs.texts)
    assert model.training
    assert images.shape[0] == len(split.images)
    torch.testing.assert_close(texts.norm(dim=1), torch.ones(len(texts)))
