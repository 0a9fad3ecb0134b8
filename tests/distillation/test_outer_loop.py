import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from pairstill.distillation.outer_loop import optimise
from pairstill.distillation.synthetic_pairs import SyntheticPairs
from pairstill.errors import PairstillError
from pairstill.runtime.run_folder import Run, read_events
from tests.support.distilling import distill, files_of
from tests.support.quick_settings import SHORT, settings_of


class _Stop(Exception):
    pass


@pytest.mark.parametrize(
    ("towers", "method"),
    [("heads", "mdm"), pytest.param("full", "mdm", marks=pytest.mark.slow), ("heads", "rehearsal")],
)
def test_a_killed_run_resumes_to_the_same_bytes(towers, method, request, tmp_path, monkeypatch):
    data, bank = (request.getfixturevalue(f"{towers}_{what}") for what in ("data", "bank"))
    settings = replace(settings_of(method), iterations=7)
    distill(data, tmp_path / "whole", method, 6, bank, settings=settings)
    monkeypatch.setattr("pairstill.distillation.outer_loop.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    original = Run.event
    for kill_at in (1, 2, 5):

        def event(self, kind, kill_at=kill_at, **values):
            if kind == "step" and values["iteration"] == kill_at:
                raise _Stop
            original(self, kind, **values)

        monkeypatch.setattr(Run, "event", event)
        with pytest.raises(_Stop):
            distill(data, tmp_path / "killed", method, 6, bank, settings=settings, resume=True)
    monkeypatch.setattr(Run, "event", original)
    distill(data, tmp_path / "killed", method, 6, bank, settings=settings, resume=True)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "killed")
    steps = [event["iteration"] for event in read_events(tmp_path / "killed/run") if event["kind"] == "step"]
    assert steps == list(range(1, steps[-1] + 1))
    assert steps[-1] >= 7


@pytest.mark.slow
@pytest.mark.crash
def test_ctrl_c_saves_and_says_how_to_go_on(heads_data, heads_bank, tmp_path):
    data, bank, out = heads_data.folder, heads_bank.folder, tmp_path / "set"
    command = [sys.executable, "-m", "pairstill.cli", "distill", str(data), "--bank", str(bank), "--out", str(out)]
    command += ["--pairs", "6", "--settings.iterations", "100000", "--settings.check-every", "100000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"})
    events = out / "run" / "events.jsonl"
    deadline = time.monotonic() + 90
    while not (events.exists() and '"step"' in events.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "everything so far is kept" in errors
    assert "Continue with:  pairstill distill" in errors
    assert "--resume" in errors
    assert (out / "run" / "checkpoint.safetensors").exists()
    assert not (out / "distilled.json").exists()


def test_divergence_stops_at_the_last_good_state(heads_data, heads_bank, tmp_path):
    settings = replace(SHORT, image_lr=1e9)
    with pytest.raises(
        PairstillError, match=r"diverged in iteration 1: .* Lower --settings.image-lr and --settings.text-lr"
    ):
        distill(heads_data, tmp_path / "set", "mdm", 4, heads_bank, settings=settings)
    run = Run(tmp_path / "set/run", json.loads((tmp_path / "set/run/run.json").read_text())["config"], resume=True)
    tensors, state = run.load_checkpoint()
    assert state["done"] == 0
    assert torch.isfinite(tensors["images"]).all()
    assert not (tmp_path / "set/distilled.json").exists()


def _optimise(folder, data, scores, **options):
    """The outer loop with checks that find these recalls; returns what it chose and the pairs at its end."""
    from pairstill.distillation.contract import Context
    from pairstill.training.recall import Recall

    found = iter(scores)
    run = Run(folder, {}, resume=True)
    context = Context("test", data.encoded(), 2, 0, None, run, score=lambda *_: Recall(*([next(found)] * 6)))
    pairs = SyntheticPairs(torch.zeros(2, 3, 4, 4), torch.zeros(2, 5), 1.0, 1.0, 0.0)

    def step(synthetic, iteration):
        synthetic.update(-synthetic.images.sum() - synthetic.texts.sum(), clip=1.0)
        return {"loss": 0.0}

    return optimise(context, pairs, step, **options), pairs


def test_the_best_check_is_chosen_not_the_last(heads_data, tmp_path):
    chosen, pairs = _optimise(tmp_path, heads_data, [1.0, 5.0, 3.0], iterations=4, check_every=2)
    assert (chosen.iteration, chosen.recall, chosen.checks) == (2, 5.0, [0, 2, 4])
    assert chosen.images.sum() < pairs.images.sum()


@pytest.mark.parametrize(
    ("patience", "checks"),
    [(0, [0, 2, 4, 6, 8, 10]), (1, [0, 2, 4]), (2, [0, 2, 4, 6, 8, 10]), (3, [0, 2, 4, 6, 8, 10])],
)
def test_patience_ends_a_run_after_so_many_checks_that_were_no_better(patience, checks, heads_data, tmp_path):
    scores = [1.0, 5.0, 4.0, 6.0, 3.0, 2.0]
    chosen, _ = _optimise(tmp_path, heads_data, scores, iterations=10, check_every=2, patience=patience)
    assert chosen.checks == checks
    assert chosen.recall == max(scores[: len(checks)])


def test_a_run_that_patience_ended_stays_ended(heads_data, tmp_path):
    options = {"iterations": 100, "check_every": 2, "patience": 2}
    chosen, _ = _optimise(tmp_path, heads_data, [1.0, 1.0, 0.0], **options)
    assert (chosen.iteration, chosen.checks) == (0, [0, 2, 4])
    again, _ = _optimise(tmp_path, heads_data, [], **options)
    assert again.checks == [0, 2, 4]
