import csv
import json
from dataclasses import replace

import pytest

from pairstill.evaluation.scoring import evaluate_full
from pairstill.studies.tables import results_table, write_results
from pairstill.training.protocols import protocol_named
from tests.support.distilling import QUICK


def test_tables(heads_data, tmp_path):
    row = evaluate_full(heads_data.encoded(), protocol_named("clean"), 1, recipe=QUICK)
    write_results(tmp_path / "rows.json", [row, replace(row, method="mdm")])
    write_results(tmp_path / "rows.csv", [row])
    assert [r["method"] for r in json.loads((tmp_path / "rows.json").read_text())] == ["full", "mdm"]
    with (tmp_path / "rows.csv").open() as file:
        assert float(next(csv.DictReader(file))["mean"]) == pytest.approx(row.mean, abs=1e-3)
    assert results_table([row]).row_count == 1
