import pytest

from pairstill.errors import PairstillError
from pairstill.studies.published import main_rows, published
from tests.conftest import ROOT

ROWS = {"main": 75, "cross_architecture": 18, "compute": 6, "total_cost": 4, "ablations": 18}
RECALLS = ("ir1", "ir5", "ir10", "tr1", "tr5", "tr10")
TRANSFERS = (
    "nf_resnet_bert",
    "nf_regnet_bert",
    "nfnet_distilbert",
    "nf_resnet_distilbert",
    "nf_regnet_distilbert",
)
TEXTS = ("dataset", "pairs", "method", "group", "choice", "label", "notes")
RECIPES = ROOT / "recipes"


@pytest.mark.parametrize("table", ROWS)
def test_every_table_reads_as_numbers(table):
    rows = published(table)
    assert len(rows) == ROWS[table]
    for row in rows:
        assert None not in row and None not in row.values(), row
        assert all(value == "" or float(value) >= 0 for key, value in row.items() if key not in TEXTS), row


@pytest.mark.parametrize(
    ("table", "parts"), [("main", RECALLS), ("cross_architecture", TRANSFERS), ("ablations", ("ir", "tr"))]
)
def test_a_mean_agrees_with_its_parts_or_is_noted(table, parts):
    for row in published(table):
        average = sum(float(row[part]) for part in parts) / len(parts)
        assert abs(average - float(row["mean"])) < 0.06 or "mean" in row["notes"], row


def test_the_slip_in_lors_is_noted_and_kept():
    (row,) = [
        row
        for row in published("main")
        if (row["dataset"], row["pairs"], row["method"]) == ("flickr30k", "500", "lors")
    ]
    assert row["tr5"] == "29.8" and "39.8" in row["notes"]


def test_anchors():
    assert [main_rows("flickr8k", pairs)["mdm"] for pairs in (100, 200, 500)] == [21.9, 24.3, 26.2]
    assert [main_rows("flickr8k", pairs)["lors"] for pairs in (100, 200, 500)] == [19.4, 22.1, 25.0]
    assert [main_rows("flickr30k", pairs)["mdm"] for pairs in (100, 200, 500)] == [26.4, 28.2, 30.6]
    assert [main_rows("coco", pairs)["mdm"] for pairs in (100, 200, 500)] == [10.3, 13.1, 15.3]
    assert main_rows("flickr8k", 100)["full"] == 53.8
    assert len(main_rows("coco", 200)) == 9
    assert main_rows("emoji", 100) == {}


def test_the_tables_agree_with_each_other():
    for row in published("cross_architecture"):
        assert float(row["nfnet_bert"]) == main_rows(row["dataset"], int(row["pairs"]))[row["method"]]
    for row in published("total_cost"):
        seconds = float(row["init_seconds"] or 0) + float(row["distillation_seconds"])
        assert abs(float(row["expert_hours"]) + seconds / 3600 - float(row["total_gpu_hours"])) < 0.06
    for row in published("compute"):
        minutes = float(row["seconds_per_iteration"]) * float(row["iterations_till_best"]) / 60
        assert abs(minutes - float(row["total_minutes"])) < 0.01


def test_each_ablation_has_its_recipe():
    for row in published("ablations"):
        assert row["choice"] == "mdm" or (RECIPES / f"ablation-{row['group']}-{row['choice']}.yaml").exists(), row


def test_an_unknown_table_names_the_nearest():
    with pytest.raises(PairstillError, match="'ablations'"):
        published("ablation")
