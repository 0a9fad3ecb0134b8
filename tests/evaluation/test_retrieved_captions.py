import torch

from pairstill import api
from pairstill.evaluation import retrieved_captions
from pairstill.evaluation.retrieved_captions import best_captions, with_retrieved_captions
from pairstill.evaluation.scoring import distilled_pairs
from pairstill.runtime.row_matrix import in_memory
from pairstill.sets.distilled_set import load
from pairstill.training.student_training import embed
from pairstill.training.training_recipe import Recipe

RECIPE = Recipe(epochs=30, momentum=0.9)


def made_of(heads_data, tmp_path, pairs=6):
    api.distill(heads_data, tmp_path / "set", "random", pairs)
    return load(tmp_path / "set")


def test_captions_are_those_that_the_models_put_first_together(heads_data, tmp_path, monkeypatch):
    made, encoded = made_of(heads_data, tmp_path), heads_data.encoded()
    pairs, captions = distilled_pairs(encoded, made), in_memory(encoded.split("train").pairs.texts)
    models = [encoded.new_model(seed) for seed in range(3)]
    vectors = [embed(model, pairs.inputs, captions) for model in models]
    expected = [
        sorted(range(len(captions)), key=lambda c: -sum(float(images[n] @ words[c]) for images, words in vectors))[:3]
        for n in range(len(made))
    ]
    assert best_captions(models, pairs, captions, 3).tolist() == expected
    monkeypatch.setattr("pairstill.runtime.row_matrix.ROWS_AT_ONCE", 2)
    assert best_captions(models, pairs, captions, 3).tolist() == expected


def test_a_set_reads_as_the_means_of_captions_and_keeps_its_pictures(heads_data, tmp_path, monkeypatch):
    made, encoded = made_of(heads_data, tmp_path), heads_data.encoded()
    chosen = torch.arange(12).reshape(6, 2)
    monkeypatch.setattr(retrieved_captions, "best_captions", lambda *args: chosen)
    read = with_retrieved_captions(encoded, encoded, made, RECIPE, 0)
    real = in_memory(encoded.split("train").pairs.texts)
    torch.testing.assert_close(read.texts, (real[0:12:2] + real[1:12:2]) / 2)
    assert torch.equal(read.images, made.images)
    assert read.info["towers"]["encoders"] == made.info["towers"]["encoders"]


def test_step_sizes_that_a_set_learnt_are_those_of_its_retrievers(heads_data, tmp_path, monkeypatch):
    made, encoded, seen = made_of(heads_data, tmp_path), heads_data.encoded(), []
    made.info["student"] = {"lr": 0.5, "text_lr": 0.25}
    monkeypatch.setattr(retrieved_captions, "train", lambda model, pairs, recipe, seed: seen.append((recipe, seed)))
    with_retrieved_captions(encoded, encoded, made, RECIPE, 0)
    assert [(recipe.lr, recipe.text_lr) for recipe, _ in seen] == [(0.5, 0.25)] * 3
    assert len({seed for _, seed in seen}) == 3
