"""A clock that jumps by days, in a run and between its sessions: the same bytes, and times that make sense."""

import itertools
import re
import time
from dataclasses import replace

import pytest

from pairstill import api
from pairstill.methods.through_training.rehearsal import Settings
from pairstill.runtime import progress
from pairstill.runtime.run_folder import Run, read_events
from pairstill.show.serve.served_folder import ServedFolder, progress_of
from pairstill.training.training_recipe import Recipe
from tests.conftest import TINY_HEADS, write_shapes
from tests.support.distilling import distill, files_of
from tests.support.killing import made
from tests.support.quick_settings import settings_of

DAY = 86_400.0
JUMPS = (0.0, -3 * DAY, 400 * DAY, -20 * 365 * DAY, 1.0, 90 * DAY)


class Stop(Exception):
    pass


def jumping(monkeypatch):
    """Every look at the time of day gives another day from now on.

    Returns what restarts the clock that only goes forward, as a computer does that is switched on.
    """
    jumps = itertools.cycle(JUMPS)
    now, monotonic, gmtime = time.time, time.monotonic, time.gmtime
    monkeypatch.setattr(time, "time", lambda: now() + next(jumps))
    monkeypatch.setattr(time, "time_ns", lambda: int((now() + next(jumps)) * 1e9))
    monkeypatch.setattr(time, "gmtime", lambda at=None: gmtime(now() + next(jumps) if at is None else at))

    def reboot():
        begin = monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() - begin)

    return reboot


def stop_at(monkeypatch, iteration):
    original = Run.event

    def event(self, kind, **values):
        if kind == "step" and values["iteration"] == iteration:
            raise Stop
        original(self, kind, **values)

    monkeypatch.setattr(Run, "event", event)


def stages(source, folder, settings):
    data = api.prepare(str(source), folder / "made/data", TINY_HEADS)
    api.train_experts(data, folder / "made/bank", 2, Recipe(epochs=1, batch_size=16))
    distill(data, folder / "set", "rehearsal", 8, settings=settings, resume=True)
    return data


def test_the_clock_changes_nothing(tmp_path, monkeypatch, capsys):
    source = write_shapes(tmp_path / "source", 40)
    settings = replace(settings_of("rehearsal"), images_per_step=8, iterations=6)
    stages(source, tmp_path / "straight", settings)
    reboot = jumping(monkeypatch)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr("pairstill.distillation.outer_loop.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    monkeypatch.setattr("pairstill.distillation.outer_loop.WORK_PER_SAVING", 0.0)
    for session in (2, 4):
        reboot()
        with monkeypatch.context() as stopped, pytest.raises(Stop):
            stop_at(stopped, session)
            stages(source, tmp_path / "jumped", settings)
        state = progress_of(ServedFolder(tmp_path / "jumped").view("set"))
        assert state["left"] is None or 0 <= state["left"] < 600
    reboot()
    stages(source, tmp_path / "jumped", settings)
    assert files_of(tmp_path / "jumped/set") == files_of(tmp_path / "straight/set")
    assert made(tmp_path / "jumped") == made(tmp_path / "straight")
    seconds = [event["seconds"] for event in read_events(tmp_path / "jumped/set/run")]
    assert seconds == sorted(seconds) and seconds[0] >= 0 and seconds[-1] < 600
    assert_times_make_sense(capsys.readouterr().err)


def assert_times_make_sense(shown):
    left = re.findall(r", (\S+) left|in (-?[\d.]+) s", shown)
    assert len(left) > 5
    assert not re.search(r"-\d|\binf\b|\bnan\b|\d h ", shown), shown


def test_time_left_counts_the_iterations_that_will_be_done(heads_data, tmp_path, monkeypatch):
    """Images that take turns, and are seen as they began too, need more iterations than were asked for."""
    settings = Settings(**{**settings_of("rehearsal").__dict__, "iterations": 4, "images_per_step": 2})
    stop_at(monkeypatch, 7)
    with pytest.raises(Stop):
        distill(heads_data, tmp_path / "set", "rehearsal", 8, settings=settings)
    state = progress_of(ServedFolder(tmp_path).view("set"))
    assert (state["done"], state["total"]) == (6, 11)  # 4 times the square root of eight
    assert state["left"] >= 0
