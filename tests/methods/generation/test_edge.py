import sys
from dataclasses import replace

import pytest
import torch

from pairstill import api
from pairstill.errors import PairstillError
from pairstill.methods.generation.edge import Settings
from pairstill.runtime.run_folder import Run
from tests.support.distilling import files_of


@pytest.fixture
def settings(tiny_diffusion):
    return Settings(**tiny_diffusion, epochs=2, batch_size=64, tuning_size=16, sampling_steps=2, lr=0.01)


def test_tuning_changes_what_is_sampled_and_a_stopped_run_goes_on_to_the_same_bytes(
    heads_data, settings, tmp_path, monkeypatch
):
    made = api.distill(heads_data, tmp_path / "a", "edge", 4, settings=settings)
    untuned = api.distill(heads_data, tmp_path / "c", "edge", 4, settings=replace(settings, epochs=0))
    assert not torch.equal(made.images, untuned.images)
    save = Run.save_checkpoint

    def then_die(self, *state):
        save(self, *state)
        raise RuntimeError("killed")

    monkeypatch.setattr(Run, "save_checkpoint", then_die)
    with pytest.raises(RuntimeError, match="killed"):
        api.distill(heads_data, tmp_path / "b", "edge", 4, settings=settings)
    monkeypatch.undo()
    api.distill(heads_data, tmp_path / "b", "edge", 4, settings=settings, resume=True)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_what_is_missing_is_said(heads_data, settings, tmp_path, monkeypatch):
    with pytest.raises(PairstillError, match="can't be loaded as StableDiffusionPipeline"):
        api.distill(heads_data, tmp_path / "x", "edge", 4, settings=replace(settings, model=str(tmp_path)))
    monkeypatch.setattr("pairstill.distillation.diffusion_model.hub_reachable", lambda: False)
    with pytest.raises(PairstillError, match="needed from the hub, which can't be reached"):
        api.distill(heads_data, tmp_path / "y", "edge", 4, settings=replace(settings, model="nobody/nothing"))
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(PairstillError, match=r"pip install 'pairstill\[edge\]'"):
        api.distill(heads_data, tmp_path / "z", "edge", 4, settings=settings)
