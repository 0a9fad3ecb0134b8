import torch

from pairstill.features.training_pairs import TensorInputs, TrainingPairs
from pairstill.training.student_training import Candidate, as_training_pairs, embed, train_student
from pairstill.training.training_recipe import Recipe
from tests.training.conftest import identity


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
    pairs = TrainingPairs(TensorInputs(torch.randn(8, encoded.image_encoder.width)), torch.randn(8, 384), identity(8))
    trial = train_student(encoded, pairs, encoded.split("test"), 0, Recipe(epochs=20), evaluations=11)
    assert sorted(trial.recalls) == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
    assert trial.best.mean == max(recall.mean for recall in trial.recalls.values())


def test_embed_leaves_the_model_as_it_was(full_data):
    encoded = full_data.encoded()
    model = encoded.new_model(0)
    split = encoded.split("val")
    images, texts = embed(model, split.pairs.inputs, split.pairs.texts)
    assert model.training
    assert images.shape[0] == len(split.images)
    torch.testing.assert_close(texts.norm(dim=1), torch.ones(len(texts)))
