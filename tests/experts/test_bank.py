from dataclasses import replace

import pytest
import torch

from pairstill import api
from pairstill.errors import PairstillError
from pairstill.experts.bank import Bank
from pairstill.experts.teacher_weights import TEACHERS, merged
from tests.conftest import TINY_HEADS, TINY_RECIPE

ANCHOR = {"w": torch.zeros(3, 4), "b": torch.zeros(5)}


def expert(seed, epochs=3):
    random = torch.Generator().manual_seed(seed)
    return [{name: 0.3 + torch.randn(p.shape, generator=random) for name, p in ANCHOR.items()} for _ in range(epochs)]


def small_bank(folder, experts=3, packed=True):
    bank = Bank.create(folder, ANCHOR, {"image": "a"}, "data1", {"epochs": 3}, packed)
    for number in range(experts):
        bank.add(number, expert(number))
    return bank


def test_checkpoints_come_back_as_nearly_as_six_bits_can_say(tmp_path):
    small_bank(tmp_path)
    bank = Bank.open(tmp_path)
    for row, epoch in zip(bank.rows_of(1), expert(1), strict=True):
        for name, value in epoch.items():
            largest = (value - ANCHOR[name]).abs().max().item()
            assert 0 < (bank.parameters(row)[name] - value).abs().max().item() <= 0.51 * largest / 31 + 0.004 * largest


def test_a_bank_is_a_fifth_of_its_parameters(tmp_path):
    anchor = {"w": torch.randn(300, 400), "b": torch.randn(400)}
    bank = Bank.create(tmp_path, anchor, {}, "data1", {})
    bank.add(0, [{name: value + 0.01 * torch.randn(value.shape) for name, value in anchor.items()}])
    plain = 4 * sum(value.numel() for value in anchor.values())
    assert plain / (tmp_path / "expert-000/epoch-001.safetensors").stat().st_size > 5


def test_checkpoints_that_are_not_packed_come_back_to_the_bit(tmp_path):
    small_bank(tmp_path, packed=False)
    bank = Bank.open(tmp_path)
    assert bank.experts == [0, 1, 2]
    assert len(bank.checkpoints) == 9
    for row, epoch in zip(bank.rows_of(1), expert(1), strict=True):
        assert all(torch.equal(bank.parameters(row)[name], value) for name, value in epoch.items())


def test_gram_is_the_inner_products_of_the_displacements(tmp_path):
    bank = small_bank(tmp_path)
    for layer, name in enumerate(bank.anchor):
        for i in range(9):
            for j in range(9):
                a = (bank.parameters(i)[name] - ANCHOR[name]).double()
                b = (bank.parameters(j)[name] - ANCHOR[name]).double()
                assert bank.gram[layer, i, j].item() == pytest.approx(float((a * b).sum()), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("packed", [True, False])
def test_gram_is_the_same_in_tiles(packed, tmp_path, monkeypatch):
    whole = small_bank(tmp_path / "whole", packed=packed).gram
    monkeypatch.setattr("pairstill.experts.bank._GRAM_BYTES", 4 * 12 * 2)
    torch.testing.assert_close(small_bank(tmp_path / "tiles", packed=packed).gram, whole)


def test_gram_is_made_again_when_experts_are_added(tmp_path):
    bank = small_bank(tmp_path, experts=2)
    assert bank.gram.shape == (2, 6, 6)
    bank.add(2, expert(2))
    assert bank.gram.shape == (2, 9, 9)
    assert Bank.open(tmp_path).gram.shape == (2, 9, 9)


def test_merged_teacher_is_the_formula_on_two_different_experts(tmp_path):
    bank = small_bank(tmp_path)
    drawn = merged(bank, torch.Generator().manual_seed(5), experts=2, alpha=0.5)
    candidates = []
    for i, first in enumerate(bank.checkpoints):
        for j, second in enumerate(bank.checkpoints):
            if first.expert != second.expert:
                a, b = bank.parameters(i), bank.parameters(j)
                mixed = {}
                for name, start in ANCHOR.items():
                    d1, d2 = (a[name] - start).double(), (b[name] - start).double()
                    inner = (d1 * d2).sum()
                    ratio = 2 * inner / (d1.norm() * d2.norm() + inner) if inner > 0 else 0.0
                    mixed[name] = (start + 0.5 * ratio * 0.5 * (d1 + d2)).float()
                candidates.append(mixed)
    assert any(all(torch.allclose(drawn[n], c[n], atol=1e-6) for n in ANCHOR) for c in candidates)


def test_every_teacher_has_the_anchors_parameters(tmp_path):
    bank = small_bank(tmp_path)
    for draw in TEACHERS.values():
        weights = draw(bank, torch.Generator().manual_seed(0), 2, 0.5)
        assert {name: value.shape for name, value in weights.items()} == {n: p.shape for n, p in ANCHOR.items()}
    fine_tuned = TEACHERS["fine-tuned"](bank, torch.Generator().manual_seed(0), 2, 0.5)
    lasts = [bank.parameters(bank.rows_of(e)[-1]) for e in bank.experts]
    assert any(torch.equal(fine_tuned["w"], last["w"]) for last in lasts)
    assert torch.equal(TEACHERS["pretrained"](bank, torch.Generator(), 2, 0.5)["w"], ANCHOR["w"])


def test_too_few_experts_is_said(tmp_path):
    bank = small_bank(tmp_path, experts=2)
    with pytest.raises(PairstillError, match="the bank has 2 experts; this teacher needs 3"):
        merged(bank, torch.Generator(), experts=3, alpha=0.5)


def test_a_changed_checkpoint_is_refused(tmp_path):
    small_bank(tmp_path)
    path = tmp_path / "expert-001" / "epoch-002.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    bank = Bank.open(tmp_path)
    with pytest.raises(PairstillError, match=r"epoch-002.safetensors is not the file that the bank recorded"):
        bank.parameters(bank.rows_of(1)[1])


def test_a_folder_that_is_no_bank_is_said(tmp_path):
    with pytest.raises(PairstillError, match="is not a bank of experts"):
        Bank.open(tmp_path)


def test_a_bank_of_other_towers_or_data_is_refused(tmp_path):
    bank = small_bank(tmp_path)
    bank.check({"image": "a"}, "data1")
    with pytest.raises(PairstillError, match="other towers: image is 'a' there and 'b' here"):
        bank.check({"image": "b"}, "data1")
    with pytest.raises(PairstillError, match="another dataset"):
        bank.check({"image": "a"}, "data2")


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
    assert len(epochs_written) == (6 if momentum == 0 else 8)  # what was trained is not trained again


def test_another_recipe_can_not_be_added(heads_data, heads_bank, tmp_path):
    with pytest.raises(PairstillError, match=r"recipe.lr: 0.1 then, 0.05 now"):
        api.train_experts(heads_data, heads_bank.folder, 5, replace(TINY_RECIPE, lr=0.05))


def test_a_bank_for_other_towers_is_refused_by_distill(shapes, heads_bank, tmp_path):
    other = api.prepare(str(shapes), tmp_path / "data", replace(TINY_HEADS, embed_dim=8), workers=0)
    with pytest.raises(PairstillError, match="embed_dim is 16 there and 8 here"):
        api.distill(other, tmp_path / "set", pairs=4, bank=heads_bank)
