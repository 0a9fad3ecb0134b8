import subprocess
import sys

import pytest
import torch

from pairstill import api
from pairstill.api import DEFAULT_METHOD
from pairstill.errors import PairstillError
from pairstill.methods import METHODS


@pytest.mark.slow
def test_a_script_without_a_main_guard_works(shapes, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import pairstill\n"
        f"towers = pairstill.Towers(image='test_efficientnet@random', image_size=32, embed_dim=16)\n"
        f"data = pairstill.prepare({str(shapes)!r}, {str(tmp_path / 'data')!r}, towers)\n"
        f"pairs = pairstill.distill(data, {str(tmp_path / 'set')!r}, 'kmeans', 5)\n"
        "print(len(pairs), pairstill.evaluate(pairs, data, seeds=1).pairs)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["5", "5"]


def test_the_default_method_is_known():
    assert DEFAULT_METHOD in METHODS


def test_other_towers_change_only_what_is_named(heads_data, tmp_path):
    made = api.distill(heads_data, tmp_path / "set", "random", 4)
    row = api.evaluate(made, heads_data, seeds=1, towers={"image": "test_resnet@random"})
    assert row.towers == "test_resnet@random@32 + minilm, heads"
    with pytest.raises(PairstillError, match="unknown towers option 'imag'"):
        api.evaluate(made, heads_data, towers={"imag": "x"})


def test_a_device_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert api.device_named("auto") == api.device_named("cpu") == "cpu"
    with pytest.raises(PairstillError, match="torch finds no GPU here"):
        api.device_named("cuda")
    with pytest.raises(PairstillError, match="Did you mean 'cuda'"):
        api.device_named("cudda")
