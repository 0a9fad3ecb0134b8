"""A folder that is served."""

import shutil

import pytest

import pairstill
from pairstill.training.training_recipe import Recipe
from tests.support.serving import Server


@pytest.fixture(scope="session")
def root(sets, heads_data, tmp_path_factory):
    """A folder with sets, prepared data, two students, and a secret beside it."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "secret").mkdir()
    (folder / "secret" / "student.json").write_text("{}")
    inside = folder / "root"
    inside.mkdir()
    shutil.copytree(sets, inside / "sets")
    shutil.copytree(heads_data.folder, inside / "data")
    quick = Recipe(epochs=3, batch_size=16)
    for name, trained_on in (("few", sets / "mdm"), ("all", "full")):
        pairstill.train_student(trained_on, heads_data, inside / "students" / name, student=quick)
    return inside


@pytest.fixture(scope="module")  # no longer: a server's waits would go by the clocks of tests/system/test_clock.py
def page(root):
    with Server(root) as address:
        yield address
