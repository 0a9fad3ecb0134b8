import math

import pytest

from pairstill.errors import PairstillError
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
