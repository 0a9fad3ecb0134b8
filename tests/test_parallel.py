"""Two processes under torchrun, or micro-batches, make what one process makes in one batch, within float error."""

import subprocess
import sys

import pytest
import torch

from pairstill import api
from pairstill.distilled import load
from pairstill.errors import PairstillError
from pairstill.files import read_tensors
from pairstill.methods import METHODS
from pairstill.run import read_events
from pairstill.towers import Passes

REHEARSAL = {"iterations": 4, "check_every": 2, "steps": 3, "width": 8, "real_batch": 16, "views": 0, "image_lr": 0.05}
MDM = {"iterations": 3, "check_every": 3, "real_batch": 7, "image_lr": 100.0}


def with_two(data, bank, out, method, settings):
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--module"]
    command = ["pairstill.cli", "distill", str(data.folder), "--method", method, "--pairs", "5"]
    options = [word for name, value in settings.items() for word in (f"--settings.{name}", str(value))]
    places = ["--bank", str(bank.folder), "--out", str(out)]
    whole = [sys.executable, *launch, *command, *places, *options]
    done = subprocess.run(whole, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("5 pairs by") == 1  # only one of them speaks
    return load(out)


def losses(folder):
    return [event["loss"] for event in read_events(folder / "run") if event["kind"] == "step"]


CASES = pytest.mark.parametrize(
    ("towers", "method", "settings"), [("heads", "rehearsal", REHEARSAL), ("full", "mdm", MDM)]
)


def assert_the_same(data, folder, one, two):
    """Sets, losses and last states agree, and every picture had moved."""
    assert one.info["chosen"]["iteration"] == two.info["chosen"]["iteration"]
    torch.testing.assert_close(two.images, one.images, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(two.texts, one.texts, rtol=1e-3, atol=1e-3)
    assert losses(folder / "two") == pytest.approx(losses(folder / "one"), rel=1e-4)
    ends = [read_tensors(folder / name / "run/checkpoint.safetensors") for name in ("one", "two")]
    for name in ("images", "texts"):
        torch.testing.assert_close(ends[1][name], ends[0][name], rtol=1e-3, atol=1e-3)
    start = api.distill(data, folder / "start", "kmeans", 5).images
    assert ((ends[1]["images"] - start).abs().amax(dim=(1, 2, 3)) > 1e-2).all()


@CASES
def test_two_processes_make_what_one_makes(towers, method, settings, request, tmp_path):
    data, bank = (request.getfixturevalue(f"{towers}_{what}") for what in ("data", "bank"))
    one = api.distill(data, tmp_path / "one", method, 5, bank, settings=METHODS[method].settings(**settings))
    two = with_two(data, bank, tmp_path / "two", method, settings)
    assert_the_same(data, tmp_path, one, two)


@CASES
def test_micro_batches_make_what_one_batch_makes(towers, method, settings, request, tmp_path):
    data, bank = (request.getfixturevalue(f"{towers}_{what}") for what in ("data", "bank"))
    chosen = METHODS[method].settings(**settings)
    one = api.distill(data, tmp_path / "one", method, 5, bank, settings=chosen)
    two = api.distill(data, tmp_path / "two", method, 5, bank, settings=chosen, passes=Passes(2))
    assert_the_same(data, tmp_path, one, two)


@CASES
def test_mixed_precision_makes_nearly_the_same(towers, method, settings, request, tmp_path):
    data, bank = (request.getfixturevalue(f"{towers}_{what}") for what in ("data", "bank"))
    chosen = METHODS[method].settings(**settings)
    for name, passes in (("one", Passes()), ("two", Passes(precision="mixed"))):
        api.distill(data, tmp_path / name, method, 5, bank, settings=chosen, passes=passes)
    exact, mixed = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert mixed == pytest.approx(exact, rel=0.05)
    assert mixed != exact
    with pytest.raises(PairstillError, match="precision"):
        api.distill(data, tmp_path / "two", method, 5, bank, settings=chosen, resume=True)
