import itertools
import json

import torch

from pairstill import api
from pairstill.evaluation.scoring import METRICS, with_nearest_captions
from pairstill.experts.bank import Bank
from pairstill.runtime.files import read_tensors
from pairstill.runtime.launchers import InProcess
from pairstill.sets.distilled_set import load
from pairstill.studies.comparison import compare
from pairstill.studies.job import Job, cost_of, seconds_per_iteration
from pairstill.studies.study import read_study
from tests.studies.conftest import MDM, recipe


def test_keys_change_with_what_a_row_depends_on_and_with_nothing_else(tmp_path):
    def keys(rows, made_of="data", read_by="students", **changes):
        study = read_study(recipe(tmp_path, rows, **changes))
        jobs = [Job(entry, study, tmp_path, made_of, read_by, tmp_path, tmp_path) for entry in study.entries]
        return [(job.set_key(), job.key()) for job in jobs]

    rows = [{"method": "random", "pairs": 4}, MDM, {"method": "full"}]
    base = keys(rows)
    assert keys([{**rows[0], "label": "x"}, *rows[1:]], title="other") == base
    more_experts = keys(rows, experts=3)
    assert more_experts[0] == base[0] and more_experts[1] != base[1]
    more_seeds = keys(rows, seeds=3)
    assert [s for s, _ in more_seeds] == [s for s, _ in base]
    assert all(new != old for (_, new), (_, old) in zip(more_seeds, base, strict=True))
    assert keys([rows[0], {**MDM, "settings": {**MDM["settings"], "alpha": 0.4}}, rows[2]])[1] != base[1]
    assert all(new != old for new, old in zip(keys(rows, made_of="other data"), base, strict=True))
    other_students = keys(rows, read_by="others")
    assert [s for s, _ in other_students] == [s for s, _ in base]
    assert not {key for _, key in other_students} & {key for _, key in base}
    longer_students = keys(rows, student={"epochs": 9})
    assert longer_students[0] != base[0] and longer_students[2] == base[2]  # all pairs train with the experts' recipe


def test_a_row_is_what_its_recipe_says(heads_data, tmp_path):
    """The same pairs and the same scores as by hand: with the study's seed, students, experts and texts."""
    short = {"iterations": 2, "check_every": 2, "inner_epochs": 3, "min_inner_epochs": 3, "real_batch": 8}
    of_students = {"method": "rehearsal", "pairs": 6, "settings": short, "texts": "nearest"}  # they rehearse as scored
    rows = [{**MDM, "experts": 2}, of_students, {**MDM, "label": "with all experts"}]
    path = recipe(tmp_path, rows, experts=3, seed=3, student={"epochs": 3, "batch_size": 4, "lr": 0.3})
    study, out, encoded = read_study(path), tmp_path / "out", heads_data.encoded()
    records = compare(study, out, heads_data.folder, InProcess())
    (bank,) = (out / "banks").glob("*/bank.json")
    experts = Bank.open(bank.parent).first(2)
    for entry, record, read in zip(study.entries[:2], records[:2], (None, with_nearest_captions), strict=True):
        made = api.distill(
            heads_data,
            hand := tmp_path / entry.method,
            entry.method,
            6,
            experts if entry.method == "mdm" else None,
            settings=entry.all_settings(),
            seed=3,
            student=study.student_recipe,
        )
        for file in ("texts", "run/checkpoint"):  # the set, and where it ended if its start was chosen
            ours, theirs = (read_tensors(folder / f"{file}.safetensors") for folder in (out / record["set"], hand))
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        seen = read(encoded, made) if read else made
        row = api.evaluate(seen, heads_data, seeds=2, student=study.student_recipe, seed=3)
        assert {name: record[name] for name in METRICS} == {name: getattr(row, name) for name in METRICS}


def test_memory_is_that_of_the_process_that_made_the_set(heads_data, tmp_path):
    api.distill(heads_data, tmp_path / "set", "random", 4)
    events = tmp_path / "set/run/events.jsonl"
    assert cost_of(events.parent, load(tmp_path / "set"))["peak_mib"] > 50
    done = json.loads(events.read_text().splitlines()[-1])
    events.write_text(json.dumps({**done, "peak_mib": 7}) + "\n")
    assert cost_of(events.parent, load(tmp_path / "set"))["peak_mib"] == 7


def test_seconds_per_iteration_count_both_kinds_that_alternate_and_no_pause():
    steps = list(itertools.accumulate([3.0, 1.0] * 10))
    assert seconds_per_iteration(steps) == 2
    assert seconds_per_iteration([*steps[:9], *(second + 500 for second in steps[9:])]) == 2
    assert seconds_per_iteration([5.0, 6.5]) == 1.5
    assert seconds_per_iteration([5.0]) is None
