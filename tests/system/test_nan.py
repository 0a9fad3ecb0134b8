"""NaN in the middle of the work: it is said where, what was good before it is kept, and none reaches a saved file."""

import json
import math
from dataclasses import replace

import pytest
import torch

from pairstill import api
from pairstill.distillation.synthetic_pairs import SyntheticPairs
from pairstill.errors import PairstillError
from pairstill.experts.bank import Bank
from pairstill.experts.foreign_buffers import import_buffers
from pairstill.methods import METHODS
from pairstill.methods.generation import edge
from pairstill.runtime.files import read_sealed, sha256, write_manifest, write_tensors
from pairstill.sets.distilled_set import load
from pairstill.towers.two_tower import TwoTower
from pairstill.training.training_loop import TrainingDiverged, train
from pairstill.training.training_recipe import Recipe
from tests.support.distilling import distill, files_of
from tests.support.quick_settings import settings_of

ITERATIVE = [name for name, method in METHODS.items() if hasattr(method.settings(), "iterations")]


def nan_in_the_pixels_gradient(monkeypatch, iteration):
    """The gradient of one pixel is NaN in that iteration."""
    make, passes = SyntheticPairs.__init__, []

    def spoil(grad):
        passes.append(grad)
        if len(passes) == iteration:
            grad = grad.clone()
            grad[0, 0, 0, 0] = math.nan
        return grad

    def spoilt(self, *args, **options):
        make(self, *args, **options)
        for part in self.image_blocks:
            part.register_hook(spoil)

    monkeypatch.setattr(SyntheticPairs, "__init__", spoilt)


def test_every_iterative_method_is_tried():
    assert set(ITERATIVE) == {"dm", "mtt-vl", "tesla", "lors", "mdm", "rehearsal"}


@pytest.mark.parametrize("method", ITERATIVE)
def test_a_distillation_keeps_what_was_before_the_nan_and_goes_on_from_it(
    method, heads_data, heads_bank, tmp_path, monkeypatch
):
    settings = replace(settings_of(method), iterations=4, check_every=2)
    if method == "rehearsal":
        settings = replace(settings, alternate_initial_images=False)  # images have a gradient in every iteration
    distill(heads_data, tmp_path / "straight", method, 4, heads_bank, settings=settings)
    out = tmp_path / "spoilt"
    with monkeypatch.context() as spoilt:
        nan_in_the_pixels_gradient(spoilt, 3)
        message = r"diverged in iteration 3: .*gradient nan.*state after iteration 2 is kept.*Lower --settings"
        with pytest.raises(PairstillError, match=message):
            distill(heads_data, out, method, 4, heads_bank, settings=settings)
    assert not (out / "distilled.json").exists()
    tensors, state = read_sealed(out / "run/checkpoint.safetensors")
    assert state["done"] == 2
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
    assert "NaN" not in (out / "run/events.jsonl").read_text()
    distill(heads_data, out, method, 4, heads_bank, settings=settings, resume=True)
    assert files_of(out) == files_of(tmp_path / "straight")


def nan_in_a_training_gradient(monkeypatch, last_step):
    """The gradient of the text projector is NaN in the last of so many steps: no later loss tells of it."""
    forward, steps = TwoTower.forward, []

    def spoilt(self, images, texts):
        found = forward(self, images, texts)
        if self.training:
            steps.append(1)
            if len(steps) == last_step:
                found[1].register_hook(lambda grad: grad * math.nan)
        return found

    monkeypatch.setattr(TwoTower, "forward", spoilt)


def test_experts_keep_what_was_before_the_nan_and_go_on_from_it(heads_data, tmp_path, monkeypatch):
    recipe = Recipe(epochs=3, batch_size=32)
    straight = api.train_experts(heads_data, tmp_path / "straight", 2, recipe)
    steps_of_an_epoch = math.ceil(len(heads_data.encoded().split("train").pairs.links) / 32)
    with monkeypatch.context() as spoilt:
        nan_in_a_training_gradient(spoilt, (3 + 2) * steps_of_an_epoch)
        with pytest.raises(PairstillError, match=r"expert 2: training diverged in epoch 2: .*--recipe\.lr.*are kept"):
            api.train_experts(heads_data, tmp_path / "spoilt", 2, recipe)
    assert Bank.open(tmp_path / "spoilt").experts == [0]
    made = api.train_experts(heads_data, tmp_path / "spoilt", 2, recipe)
    assert [row.sha256 for row in made.checkpoints] == [row.sha256 for row in straight.checkpoints]


def test_a_student_with_nan_is_no_score(heads_data, monkeypatch):
    encoded = heads_data.encoded()
    nan_in_a_training_gradient(monkeypatch, 1)
    with pytest.raises(TrainingDiverged, match="epoch 1"):
        train(encoded.new_model(0), encoded.split("train").pairs, Recipe(epochs=1, batch_size=1000), 0)


def test_edge_stops_at_nan(heads_data, tiny_diffusion, tmp_path, monkeypatch):
    settings = replace(settings_of("edge"), **tiny_diffusion)
    real, steps = edge.tuning_loss, []

    def spoilt(*args):
        steps.append(1)
        return real(*args) * (math.nan if len(steps) == 2 else 1)

    monkeypatch.setattr(edge, "tuning_loss", spoilt)
    with pytest.raises(PairstillError, match=r"diverged in epoch 1, step 2: the loss was nan.*Lower --settings\.lr"):
        distill(heads_data, tmp_path / "set", "edge", 2, settings=settings)
    assert not (tmp_path / "set/distilled.json").exists()


@pytest.mark.parametrize("name", ["images", "texts", "similarity"])
def test_no_set_with_nan_is_made_or_read(name, heads_data, tmp_path):
    made = replace(api.distill(heads_data, tmp_path / "random", "random", 6), similarity=torch.eye(6))
    made.save(tmp_path / "set")
    spoilt = getattr(made, name).clone()
    spoilt[(0,) * spoilt.ndim] = math.nan
    with pytest.raises(PairstillError, match="NaN"):
        replace(made, **{name: spoilt})
    write_tensors(tmp_path / "set" / f"{name}.safetensors", {name: spoilt})
    manifest = json.loads((tmp_path / "set/distilled.json").read_text())
    del manifest["digest"]
    manifest["sha256"][f"{name}.safetensors"] = sha256(tmp_path / "set" / f"{name}.safetensors")
    write_manifest(tmp_path / "set/distilled.json", manifest)
    with pytest.raises(PairstillError, match="NaN"):
        load(tmp_path / "set")


def test_no_bank_with_nan_is_imported(heads_data, tmp_path):
    encoded = heads_data.encoded()
    named = dict(encoded.new_model(0).named_parameters())
    for tower, of_text in (("image", False), ("text", True)):
        values = [value.detach().clone() for name, value in named.items() if name.startswith("text_head.") is of_text]
        later = [value * math.nan if of_text else value for value in values]
        torch.save([[values, later]], tmp_path / f"{tower}.pt")
    with pytest.raises(PairstillError, match=r"expert 0, epoch 1: text_head.* has NaN"):
        import_buffers(encoded, tmp_path / "bank", [tmp_path / "image.pt"], [tmp_path / "text.pt"])
    assert not (tmp_path / "bank").exists()
