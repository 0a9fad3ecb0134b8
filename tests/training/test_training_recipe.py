import math
from dataclasses import fields

import pytest

from pairstill.errors import PairstillError
from pairstill.towers.two_tower import Towers
from pairstill.training.training_recipe import (
    EXPERT_RECIPE,
    FULL_EXPERT_RECIPE,
    STUDENT_RECIPE,
    Recipe,
    RecipeChanges,
    changed,
    expert_recipe,
)


def test_published_recipes():
    assert (EXPERT_RECIPE.epochs, EXPERT_RECIPE.lr, EXPERT_RECIPE.momentum, EXPERT_RECIPE.weight_decay) == (
        10,
        0.1,
        0,
        0,
    )
    assert (STUDENT_RECIPE.epochs, STUDENT_RECIPE.lr, STUDENT_RECIPE.momentum) == (100, 0.1, 0.9)
    assert (STUDENT_RECIPE.weight_decay, STUDENT_RECIPE.decay, STUDENT_RECIPE.batch_size) == (5e-4, 0.1, 128)


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
        {"schedule": "linear"},
    ],
)
def test_a_nonsense_recipe_is_refused(change):
    ((name, value),) = change.items()
    with pytest.raises(PairstillError, match=f"{name} of a training recipe must be .*, not {value}"):
        Recipe(**{"epochs": 1, **change})


def test_experts_have_a_recipe_for_each_regime():
    assert expert_recipe(Towers(train="heads")) == EXPERT_RECIPE
    assert expert_recipe(Towers(train="full")) == FULL_EXPERT_RECIPE
    assert FULL_EXPERT_RECIPE.lr < EXPERT_RECIPE.lr < FULL_EXPERT_RECIPE.text_lr


def test_changes_leave_the_rest_as_it_was():
    assert changed(STUDENT_RECIPE, None) == changed(STUDENT_RECIPE, RecipeChanges()) == STUDENT_RECIPE
    found = changed(STUDENT_RECIPE, RecipeChanges(epochs=3, one_caption=True))
    assert (found.epochs, found.one_caption, found.lr) == (3, True, STUDENT_RECIPE.lr)
    assert changed(STUDENT_RECIPE, Recipe(epochs=2)) == Recipe(epochs=2)


def test_changes_that_make_no_sense_are_refused():
    with pytest.raises(PairstillError, match="momentum of a training recipe"):
        changed(STUDENT_RECIPE, RecipeChanges(momentum=2.0))
    assert {field.name for field in fields(RecipeChanges)} == {field.name for field in fields(Recipe)}


def test_step_sizes_fall_in_a_step_or_along_a_cosine():
    step, cosine = Recipe(epochs=5, decay=0.1), Recipe(epochs=4, schedule="cosine")
    assert [step.share_of_lr(epoch) for epoch in (0, 2.9, 3, 4.5)] == [1.0, 1.0, 0.1, 0.1]
    assert [cosine.share_of_lr(epoch) for epoch in (0, 1, 2, 4)] == pytest.approx([1, (1 + 0.5**0.5) / 2, 0.5, 0])
