from dataclasses import replace

import pytest

from pairstill import api
from pairstill.errors import PairstillError
from pairstill.runtime.files import read_manifest
from pairstill.training.training_recipe import FULL_STUDENT_RECIPE, STUDENT_RECIPE, Recipe, RecipeChanges
from tests.support.distilling import distill


def test_a_folder_in_use_or_other_settings_are_refused(heads_data, heads_bank, tmp_path):
    distill(heads_data, tmp_path / "set", "random", 4)
    with pytest.raises(PairstillError, match="already holds a run"):
        distill(heads_data, tmp_path / "set", "random", 4)
    with pytest.raises(PairstillError, match="pairs: 4 then, 5 now"):
        distill(heads_data, tmp_path / "set", "random", 5, resume=True)
    again = distill(heads_data, tmp_path / "set", "random", 4, resume=True)
    assert len(again) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pairs": 1}, "--pairs must be at least 2"),
        ({"pairs": 10_000}, "more than the 96 training images"),
        ({"method": "mdn"}, "unknown method 'mdn'. Did you mean 'mdm'"),
        ({"protocol": "claen"}, "unknown protocol 'claen'. Did you mean 'clean'"),
        ({"protocol": "mdm", "method": "random"}, "protocol 'mdm' trains the image backbone"),
        ({"method": "mdm"}, "needs experts: give --bank"),
    ],
)
def test_bad_requests_are_refused_before_anything_is_written(arguments, message, heads_data, tmp_path):
    with pytest.raises(PairstillError, match=message):
        distill(heads_data, tmp_path / "set", **{"method": "random", "pairs": 4, **arguments})
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(("regime", "expected"), [("heads", STUDENT_RECIPE), ("full", FULL_STUDENT_RECIPE)])
def test_students_have_the_recipe_of_the_regime_unless_told_otherwise(regime, expected, request, tmp_path):
    data = request.getfixturevalue(f"{regime}_data")
    api.distill(data, tmp_path / "usual", "random", 2)
    api.distill(data, tmp_path / "changed", "random", 2, student=RecipeChanges(epochs=3))
    usual, other = (read_manifest(tmp_path / name / "run/run.json")["config"] for name in ("usual", "changed"))
    assert Recipe(**usual["student"]) == expected
    assert Recipe(**other["student"]) == replace(expected, epochs=3)
