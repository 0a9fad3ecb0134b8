import os
import subprocess
import sys

import pytest

import pairstill


def test_every_name_that_is_offered_can_be_had():
    for name in pairstill.__all__:
        assert getattr(pairstill, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'distil'"):
        _ = pairstill.distil


def test_to_import_it_costs_no_torch_and_says_how_threads_wait():
    code = "import os, sys, pairstill; print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)"
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["10000", "False"]
