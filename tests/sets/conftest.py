from dataclasses import replace

import pytest
import torch

from pairstill.sets.distilled_set import load


@pytest.fixture
def soft(sets, tmp_path):
    """A set with a similarity, and strange captions."""
    made = load(sets / "mdm")
    captions = [['a "quoted" caption, with\nnewline, ünïcode 🙂', "another"], *made.captions[1:]]
    replace(made, captions=captions, similarity=torch.rand(6, 6)).save(tmp_path / "soft")
    return tmp_path / "soft"
