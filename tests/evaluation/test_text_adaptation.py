from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pairstill import api
from pairstill.errors import PairstillError
from pairstill.evaluation.retrieved_captions import with_retrieved_captions
from pairstill.evaluation.scoring import with_nearest_captions
from pairstill.evaluation.text_adaptation import towers_of, with_readable_texts
from pairstill.evaluation.text_translation import translate
from pairstill.runtime.row_matrix import in_memory
from pairstill.sets.distilled_set import load
from pairstill.sets.saved_student import load_student
from pairstill.training.training_recipe import Recipe
from tests.conftest import COLOURS, SHAPES, write_tiny_bert

RECIPE = Recipe(epochs=10, momentum=0.9)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Towers with another text encoder, of another width."""
    words = [*COLOURS, *SHAPES, "a", "on", "in", "number", "picture"]
    return {"text": str(write_tiny_bert(tmp_path_factory.mktemp("bert"), words))}


@pytest.fixture
def made(heads_data, tmp_path):
    api.distill(heads_data, tmp_path / "set", "random", 6)
    return load(tmp_path / "set")


def test_each_way_of_reading_is_its_own(heads_data, made, other):
    source, encoded = heads_data.encoded(), api._encoded(heads_data, other, "cpu")
    ours, theirs = (in_memory(side.split("train").pairs.texts) for side in (source, encoded))
    expected = {
        "nearest": with_nearest_captions(encoded, made).texts,
        "retrieved": with_retrieved_captions(encoded, source, made, RECIPE, 3).texts,
        "translated": translate(made.texts, ours, theirs),
    }
    for texts, wanted in expected.items():
        read = with_readable_texts(texts, encoded, lambda: source, made, RECIPE, 3)
        torch.testing.assert_close(read.texts, wanted, rtol=1e-4, atol=1e-4)
        assert torch.equal(read.images, made.images)
    assert with_readable_texts("as-is", encoded, lambda: source, made, RECIPE, 3) is made


@pytest.mark.parametrize(("texts", "within"), [("as-is", 0.0), ("nearest", 1e-5), ("translated", 0.0)])
def test_texts_stay_what_they_are_where_the_encoder_stays(texts, within, heads_data, made):
    encoded = heads_data.encoded()
    read = with_readable_texts(texts, encoded, lambda: encoded, made, RECIPE, 0)
    assert (read.texts - made.texts).norm() <= within * made.texts.norm()


def test_texts_of_other_weights_are_not_translated(heads_data, made, other):
    source, encoded = heads_data.encoded(), api._encoded(heads_data, other, "cpu")
    encoders = {**made.info["towers"]["encoders"], "text": "others"}
    made.info["towers"]["encoders"] = encoders
    with pytest.raises(PairstillError, match=r"other weights than those of minilm here.*--texts nearest"):
        with_readable_texts("translated", encoded, lambda: source, made, RECIPE, 0)


class Twice:
    """A text encoder that says everything twice."""

    def __init__(self, encoded):
        self.towers, self.encoders, self._encoded = encoded.towers, {"text": "twice"}, encoded

    def split(self, name):
        texts = self._encoded.split(name).pairs.texts[:]
        return SimpleNamespace(pairs=SimpleNamespace(texts=torch.cat([texts, texts], dim=1)))


def test_translated_texts_are_what_the_students_encoder_would_give(heads_data, made):
    encoded = heads_data.encoded()
    read = with_readable_texts("translated", Twice(encoded), lambda: encoded, made, RECIPE, 0)
    assert (read.texts - torch.cat([made.texts] * 2, dim=1)).norm() < 0.05 * read.texts.norm()
    assert read.info["towers"]["encoders"] == {**made.info["towers"]["encoders"], "text": "twice"}


def test_the_towers_of_a_set_are_those_that_it_was_made_with(heads_data, made):
    assert towers_of(made) == heads_data.towers
    made.info.pop("towers")
    with pytest.raises(PairstillError, match="nearest captions"):
        towers_of(made)


@pytest.mark.parametrize("texts", ["nearest", "translated"])
def test_students_with_another_text_encoder_are_scored_and_kept(heads_data, made, other, tmp_path, texts):
    row = api.evaluate(made, heads_data, seeds=1, towers=other, student=RECIPE, texts=texts)
    assert row.towers.endswith(f"{other['text']}, heads, texts {texts}")
    there = replace(heads_data, towers=replace(heads_data.towers, **other))
    kept = api.train_student(made, there, tmp_path / "student", student=RECIPE, texts=texts)
    assert load_student(tmp_path / "student").text_encoder.width == there.encoded().text_width
    assert kept.score["mean"] > 0


def test_without_saying_how_to_read_another_encoder_is_refused_with_advice(heads_data, made, other):
    with pytest.raises(PairstillError, match="--texts translated"):
        api.evaluate(made, heads_data, seeds=1, towers=other, student=RECIPE)
    with pytest.raises(PairstillError, match="texts 'closest'"):
        api.evaluate(made, heads_data, seeds=1, towers=other, student=RECIPE, texts="closest")
