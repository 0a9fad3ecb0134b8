from dataclasses import replace

import pytest
import torch

from pairstill import api
from pairstill.errors import PairstillError
from pairstill.experts.bank import Bank
from tests.conftest import TINY_RECIPE


def test_experts_share_an_anchor_and_can_be_added(heads_data, tmp_path):
    bank = api.train_experts(heads_data, tmp_path / "bank", 1, TINY_RECIPE)
    first = bank.parameters(0)
    again = api.train_experts(heads_data, tmp_path / "bank", 2, TINY_RECIPE)
    assert again.experts == [0, 1]
    assert torch.equal(again.parameters(0)["text_head.projection.weight"], first["text_head.projection.weight"])
    assert not torch.equal(again.parameters(2)["text_head.projection.weight"], first["text_head.projection.weight"])
    straight = api.train_experts(heads_data, tmp_path / "straight", 2, TINY_RECIPE)
    assert [c.sha256 for c in straight.checkpoints] == [c.sha256 for c in again.checkpoints]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_expert_killed_in_training_comes_to_the_same_end(heads_data, tmp_path, monkeypatch, momentum):
    recipe = replace(TINY_RECIPE, epochs=3, momentum=momentum)
    straight = api.train_experts(heads_data, tmp_path / "straight", 2, recipe)
    write, epochs_written = Bank.write_epoch, []

    def killed(bank, expert, epoch, parameters):
        if (expert, epoch) == (1, 3):
            raise KeyboardInterrupt
        epochs_written.append((expert, epoch))
        write(bank, expert, epoch, parameters)

    with monkeypatch.context() as patch:
        patch.setattr(Bank, "write_epoch", killed)
        with pytest.raises(KeyboardInterrupt):
            api.train_experts(heads_data, tmp_path / "killed", 2, recipe)
    assert Bank.open(tmp_path / "killed").experts == [0]

    def counted(bank, expert, epoch, parameters):
        epochs_written.append((expert, epoch))
        write(bank, expert, epoch, parameters)

    monkeypatch.setattr(Bank, "write_epoch", counted)
    again = api.train_experts(heads_data, tmp_path / "killed", 2, recipe)
    assert [row.sha256 for row in again.checkpoints] == [row.sha256 for row in straight.checkpoints]
    assert len(epochs_written) == 6  # what was trained is not trained again


def test_a_bank_has_the_epochs_that_were_asked_for(heads_data, tmp_path):
    recipe = replace(TINY_RECIPE, epochs=3)
    whole = api.train_experts(heads_data, tmp_path / "whole", 2, recipe)
    some = api.train_experts(heads_data, tmp_path / "some", 2, recipe, keep_epochs=[3, 1])
    assert [(row.expert, row.epoch) for row in some.checkpoints] == [(0, 1), (0, 3), (1, 1), (1, 3)]
    kept = {row.sha256 for row in whole.checkpoints if row.epoch != 2}
    assert {row.sha256 for row in some.checkpoints} == kept
    assert len(list((tmp_path / "some").glob("expert-*/*.safetensors"))) == 4
    with pytest.raises(PairstillError, match="keep_epochs"):
        api.train_experts(heads_data, tmp_path / "some", 3, recipe)
    with pytest.raises(PairstillError, match=r"--keep-epochs are from 1 to 3, not 4"):
        api.train_experts(heads_data, tmp_path / "none", 2, recipe, keep_epochs=[4])


def test_another_recipe_can_not_be_added(heads_data, heads_bank, tmp_path):
    with pytest.raises(PairstillError, match=r"recipe.lr: 0.1 then, 0.05 now"):
        api.train_experts(heads_data, heads_bank.folder, 5, replace(TINY_RECIPE, lr=0.05))
