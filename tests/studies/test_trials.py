from pathlib import Path
from types import SimpleNamespace

import pytest

from pairstill.errors import PairstillError
from pairstill.studies.trials import Trial, best_of, run_trials, settings_text


def _set(recall):
    return SimpleNamespace(info={"chosen": {"selection_recall": recall}})


def test_the_best_finished_trial_is_chosen_and_the_first_of_equals():
    trials = [Trial({}, _set(0), recall, 5, 1.0) for recall in (3.0, 7.0, 7.0)]
    assert best_of(trials) == 1
    assert best_of([*trials, Trial({}, None, 9.0, 5, 1.0)]) == 1


def test_no_finished_trial_is_an_error():
    with pytest.raises(PairstillError, match="none of the 1 trials"):
        best_of([Trial({}, None, 0.0, 0, 0.0)])


def test_a_trial_that_diverges_is_said_and_the_others_go_on(tmp_path, capfd):
    runs = [tmp_path / str(number) for number in range(2)]
    for run in runs:
        run.mkdir()
        events = [f'{{"kind": "step", "seconds": {seconds}, "iteration": {i}}}' for i, seconds in enumerate((2, 61), 1)]
        (run / "events.jsonl").write_text("\n".join(events) + "\n")

    def distil(number):
        if number == 0:
            raise PairstillError("it diverged in iteration 3.")
        return _set(12.34)

    grid = [{"image_lr": 1e9}, {"image_lr": 30, "momentum": 0.9}]
    trials = run_trials(grid, distil, lambda number: Path(runs[number]))
    assert best_of(trials) == 1
    assert [(trial.iterations, trial.seconds) for trial in trials] == [(2, 61), (2, 61)]
    said = capfd.readouterr().err
    assert "trial 1/2: image_lr 1000000000.0: diverged (2 iterations, 1 min 01 s) it diverged in iteration 3." in said
    assert "trial 2/2: image_lr 30, momentum 0.9: 12.3 (2 iterations, 1 min 01 s)" in said


def test_settings_are_told_in_words():
    assert settings_text({}) == "as it is"
    assert settings_text({"image_lr": 30, "init": "random"}) == "image_lr 30, init random"
