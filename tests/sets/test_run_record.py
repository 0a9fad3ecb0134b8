import json

import pytest
import torch

from pairstill.errors import PairstillError
from pairstill.runtime.run_folder import Run
from pairstill.sets.distilled_set import DistilledSet
from pairstill.sets.run_record import is_run, read_run_record, scores_of

INFO = {"method": "mdm", "normalisation": {"mean": [0.5] * 3, "std": [0.5] * 3}}


def save_set(folder):
    DistilledSet(torch.zeros(2, 3, 4, 4), torch.zeros(2, 5), [["a"], ["b"]], INFO).save(folder)


def test_a_run_in_the_making_has_its_config_and_its_events_and_no_set(tmp_path):
    assert not is_run(tmp_path)
    run = Run(tmp_path / "run", {"method": "mdm"})
    for iteration in (1, 2):
        run.event("step", iteration=iteration)
    run.event("check", iteration=2)
    record = read_run_record(tmp_path)
    assert is_run(tmp_path) and not record.finished
    assert record.config == {"method": "mdm"} and "torch" in record.versions
    assert [step["iteration"] for step in record.of_kind("step")] == [1, 2]
    assert (record.name, read_run_record(tmp_path, "x").name) == (tmp_path.name, "x")
    assert record.initial() is None and record.diagnostics == {}
    with pytest.raises(PairstillError, match="is not a distilled set"):
        _ = record.distilled


def test_a_set_that_came_without_its_run_is_one_too(tmp_path):
    save_set(tmp_path)
    record = read_run_record(tmp_path)
    assert is_run(tmp_path) and record.finished
    assert (record.config, record.versions, record.events) == ({}, {}, [])
    assert len(record.distilled) == 2 and record.distilled is record.distilled
    assert scores_of([record]) == []


def test_scores_are_those_of_all_runs_but_for_a_line_that_was_cut(tmp_path):
    for name, means in (("a", (1.5, 2.5)), ("b", (3.5,))):
        save_set(tmp_path / name)
        (tmp_path / name / "run").mkdir()
        rows = [{"mean": mean, "label": "line\u2028separator"} for mean in means]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (tmp_path / name / "run/scores.jsonl").write_text(lines + '{"mean": 9')
    runs = [read_run_record(tmp_path / name) for name in ("a", "b")]
    assert [score["mean"] for score in scores_of(runs)] == [1.5, 2.5, 3.5]


def test_diagnostics_are_read_under_their_old_name_where_there_are_no_new_ones(tmp_path):
    Run(tmp_path / "run", {})
    (tmp_path / "run/anatomy.json").write_text('{"bins": 1}')
    assert read_run_record(tmp_path).diagnostics == {"bins": 1}
    (tmp_path / "run/diagnostics.json").write_text('{"bins": 2}')
    assert read_run_record(tmp_path).diagnostics == {"bins": 2}
