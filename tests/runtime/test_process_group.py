"""Two processes under torchrun, or micro-batches, make what one process makes in one batch, within float error."""

import subprocess
import sys

import pytest
import torch

from pairstill import api
from pairstill.errors import PairstillError
from pairstill.methods import METHODS
from pairstill.runtime.files import read_tensors
from pairstill.runtime.run_folder import read_events
from pairstill.sets.distilled_set import load
from pairstill.towers.passes import Passes

pytestmark = pytest.mark.slow

REHEARSAL = {
    "iterations": 4,
    "check_every": 2,
    "inner_epochs": 3,
    "student_width": 8,
    "real_batch": 16,
    "views": 0,
    "image_lr": 0.05,
}
MDM = {"iterations": 2, "check_every": 2, "real_batch": 7, "image_lr": 100.0}


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


@pytest.fixture(scope="module", params=[("heads", "rehearsal", REHEARSAL), ("full", "mdm", MDM)], ids=["heads", "full"])
def alone(request, tmp_path_factory):
    """A method, its settings, data and bank, and what one process makes of them in one batch."""
    towers, method, settings = request.param
    data, bank = (request.getfixturevalue(f"{towers}_{what}") for what in ("data", "bank"))
    folder = tmp_path_factory.mktemp("alone")
    chosen = METHODS[method].settings(**settings)
    return data, bank, method, settings, folder, api.distill(data, folder, method, 5, bank, settings=chosen)


def assert_the_same(alone, folder, made):
    """Sets, losses and last states agree, and every image had moved."""
    data, _, _, _, first, one = alone
    assert one.info["chosen"]["iteration"] == made.info["chosen"]["iteration"]
    torch.testing.assert_close(made.images, one.images, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(made.texts, one.texts, rtol=1e-3, atol=1e-3)
    assert losses(folder) == pytest.approx(losses(first), rel=1e-4)
    ends = [read_tensors(place / "run/checkpoint.safetensors") for place in (first, folder)]
    for name in ("images", "texts"):
        torch.testing.assert_close(ends[1][name], ends[0][name], rtol=1e-3, atol=1e-3)
    start = api.distill(data, folder.with_name(f"{folder.name}-start"), "kmeans", 5).images
    assert ((ends[1]["images"] - start).abs().amax(dim=(1, 2, 3)) > 1e-2).all()


def test_two_processes_make_what_one_makes(alone, tmp_path):
    data, bank, method, settings, _, _ = alone
    assert_the_same(alone, tmp_path / "two", with_two(data, bank, tmp_path / "two", method, settings))


def test_micro_batches_make_what_one_batch_makes(alone, tmp_path):
    data, bank, method, settings, _, _ = alone
    chosen = METHODS[method].settings(**settings)
    made = api.distill(data, tmp_path / "parts", method, 5, bank, settings=chosen, passes=Passes(2))
    assert_the_same(alone, tmp_path / "parts", made)


@pytest.mark.parametrize("alone", [("heads", "rehearsal", REHEARSAL)], indirect=True)
def test_mixed_precision_makes_nearly_the_same(alone, tmp_path):
    data, bank, method, settings, first, _ = alone
    chosen, mixed = METHODS[method].settings(**settings), Passes(precision="mixed")
    api.distill(data, tmp_path / "mixed", method, 5, bank, settings=chosen, passes=mixed)
    assert losses(tmp_path / "mixed") == pytest.approx(losses(first), rel=0.05)
    assert losses(tmp_path / "mixed") != losses(first)
    with pytest.raises(PairstillError, match="precision"):
        api.distill(data, tmp_path / "mixed", method, 5, bank, settings=chosen, resume=True)
