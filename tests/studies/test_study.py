import math

import pytest
import yaml

from pairstill.errors import PairstillError
from pairstill.studies.job import Job
from pairstill.studies.study import read_study
from pairstill.studies.tables import as_markdown
from tests.conftest import ROOT
from tests.studies.conftest import BASE, recipe


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": []}, "no list of rows"),
        ({"rows": [{"pairs": 4}]}, "row 1 names no method"),
        ({"rows": [{"method": "mdmm"}]}, "mdm"),
        ({"rows": [{"method": "mdm", "settings": {"alhpa": 1}}]}, "alpha"),
        ({"rows": [{"method": "random", "pairs": 1}]}, "at least 2"),
        ({"rows": [{"method": "random", "texts": "nearst"}]}, "nearest"),
        ({"sedes": 3}, "seeds"),
        ({"student": {"epoch": 3}}, "epochs"),
        ({"protocol": "mdm"}, "full"),
        ({"rows": [{"method": "mdm", "settings": {"teacher": "mergd"}}]}, "merged"),
        ({"rows": [{"method": "mdm", "settings": {"image_lr": "fast"}}]}, "must be a number"),
        ({"rows": [{"method": "rehearsal", "settings": {"extra_encoders": "efficientnet_lite1"}}]}, "must be a list"),
        (
            {"rows": [{"method": "rehearsal", "settings": {"extra_encoders": [3]}}]},
            "each of .*extra_encoders must be a text, not 3",
        ),
        (
            {"rows": [{"method": "rehearsal", "settings": {"alternate_initial_images": "off"}}]},
            "alternate_initial_images must be true or false, not 'off'",
        ),
        ({"rows": [{"method": "rehearsal", "settings": {"inner_epochs": 2.5}}]}, "must be a whole number, not 2.5"),
        (
            {"rows": [{"method": "rehearsal", "settings": {"inner_epochs": math.inf}}]},
            "must be a whole number, not inf",
        ),
        ({"rows": [{"method": "rehearsal", "settings": {"inner_epochs": True}}]}, "must be a whole number, not True"),
        ({"rows": [{"method": "random", "pairs": []}]}, "row 1: pairs is an empty list"),
        ({"rows": [{"method": "mdm", "experts": 0}]}, "experts must be at least 1"),
        ({"rows": [{"method": "mdm", "student": {"imag": "x"}}]}, "image"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"towers": None}, "mapping"),
        ({"rows": [{"method": "mdm", "published": "kernel/cordal"}]}, "kernel/chordal"),
    ],
)
def test_a_wrong_recipe_is_said_before_anything_is_computed(tmp_path, change, message):
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**BASE, "rows": [{"method": "random"}], **change}))
    with pytest.raises(PairstillError, match=message):
        read_study(path)


@pytest.mark.parametrize("path", sorted((ROOT / "recipes/compare").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_study_that_comes_with_the_project_can_be_read(path):
    study = read_study(path)
    assert len(study.entries) > 3
    assert len({(entry.label, entry.pairs) for entry in study.entries}) == len(study.entries)


def test_numbers_that_yaml_takes_for_texts_are_numbers(tmp_path):
    plain, odd = {"image_lr": 100, "iterations": 100}, {"image_lr": "1e2", "iterations": "1e2"}
    settings = [plain, odd, {"image_lr": 100.0, "iterations": 100.0}]
    study = read_study(recipe(tmp_path, [{"method": "mdm", "settings": s} for s in settings], student={"lr": "1e-2"}))
    assert study.student_recipe.lr == 0.01
    jobs = [Job(entry, study, tmp_path, "data", "students", tmp_path, tmp_path) for entry in study.entries]
    assert len({job.key() for job in jobs}) == 1
    assert [type(job.entry.all_settings().iterations) for job in jobs] == [int] * 3


def test_published_figures_stand_beside(tmp_path):
    rows = [{"method": "mdm"}, {"method": "tesla"}, {"method": "mdm", "label": "x", "published": "kernel/chordal"}]
    study = read_study(recipe(tmp_path, [*rows, {"method": "mdm", "label": "y"}], published="flickr8k"))
    means = [study.published_mean(entry) for entry in study.entries]
    assert means == [21.9, 9.7, 21.5, None]
    record = {"label": "mdm", "method": "mdm", "pairs": 100, "mean": 17.0, "mean_std": 0.5}
    record |= {f"{way}{k}": 1.0 for way in ("ir", "tr") for k in (1, 5, 10)}
    lines = as_markdown(study, [{**record, "published_mean": mean} for mean in means]).splitlines()
    assert lines[-4].endswith("17.0 ± 0.5 | 21.9 |")
    assert lines[-1].endswith("17.0 ± 0.5 |  |")
