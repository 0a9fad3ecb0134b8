import json

import pytest

from pairstill.runtime.launchers import InProcess
from pairstill.sets.distilled_set import load
from pairstill.studies.comparison import compare
from pairstill.studies.figures import relative_losses
from pairstill.studies.study import read_study
from tests.studies.conftest import recipe


@pytest.mark.slow
def test_recall_is_drawn_against_size_where_there_are_three(heads_data, tmp_path):
    out = tmp_path / "out"
    compare(read_study(recipe(tmp_path, [{"method": "random", "pairs": [4, 6]}])), out, heads_data.folder)
    assert not (out / "study-sizes.svg").exists()
    rows = [{"method": "random", "pairs": [4, 6, 8]}, {"method": "full"}]
    records = compare(read_study(recipe(tmp_path, rows)), out, heads_data.folder)
    assert (out / "study-sizes.svg").stat().st_size > 1000
    exact = [n * (3 * 32 * 32 + 2 * load(out / records[0]["set"]).texts.shape[1]) for n in (4, 6, 8)]
    for record, expected in zip(records, exact, strict=False):
        assert expected <= record["bytes"] < expected + 200  # a header
    assert "bytes" not in records[3]


def test_the_same_rows_give_the_same_figures_to_the_byte(heads_data, tmp_path):
    study, out = read_study(recipe(tmp_path, [{"method": "random", "pairs": [4, 6, 8]}])), tmp_path / "out"
    compare(study, out, heads_data.folder, InProcess())
    drawn = {file: file.read_bytes() for kind in ("svg", "png") for file in out.glob(f"study*.{kind}")}
    assert {file.name for file in drawn} == {"study.svg", "study.png", "study-sizes.svg", "study-sizes.png"}
    for file in drawn:
        file.unlink()
    compare(study, out, heads_data.folder, InProcess())
    assert drawn == {file: file.read_bytes() for file in drawn}


def test_a_methods_own_loss_is_drawn_over_what_it_was_at_first(tmp_path):
    losses = [8.0, 4.0] * 40 + [2.0, 2.0] * 40
    lines = [
        json.dumps({"kind": "step", "seconds": n, "iteration": n, "loss": loss}) for n, loss in enumerate(losses, 1)
    ]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    iterations, relative = relative_losses(tmp_path)
    assert iterations == list(range(4, 161, 4))
    assert relative == pytest.approx([1.0] * 20 + [2.0 / 6.0] * 20)


def test_losses_of_a_run_that_has_no_step_are_none(tmp_path):
    (tmp_path / "events.jsonl").write_text("")
    assert relative_losses(tmp_path) == ([], [])
