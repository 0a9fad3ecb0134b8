from dataclasses import replace

import pytest
import torch

from pairstill import api
from pairstill.errors import PairstillError
from pairstill.experts.bank import Bank
from pairstill.experts.packing import unpack
from pairstill.runtime.files import read_tensors
from tests.conftest import TINY_HEADS
from tests.experts.conftest import ANCHOR, expert, small_bank


def test_checkpoints_come_back_as_nearly_as_six_bits_can_say(tmp_path):
    small_bank(tmp_path)
    bank = Bank.open(tmp_path)
    for row, epoch in zip(bank.rows_of(1), expert(1), strict=True):
        for name, value in epoch.items():
            largest = (value - ANCHOR[name]).abs().max().item()
            assert 0 < (bank.parameters(row)[name] - value).abs().max().item() <= 0.51 * largest / 31 + 0.004 * largest


def test_layers_unpacked_together_are_those_unpacked_one_by_one(tmp_path):
    anchor = {"w": torch.randn(7, 30), "b": torch.randn(()), "c": torch.randn(64), "d": torch.randn(3, 5, 11)}
    bank = Bank.create(tmp_path, anchor, {}, "data1", {})
    bank.add(0, [{name: value + torch.randn(value.shape) for name, value in anchor.items()}])
    found, stored = bank.parameters(0), read_tensors(tmp_path / "expert-000/epoch-001.safetensors")
    for name, start in anchor.items():
        assert torch.equal(found[name], start + unpack(stored[name], stored[f"{name}:scales"], start.shape))


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


def test_a_bank_for_other_towers_is_refused_by_distill(shapes, heads_bank, tmp_path):
    other = api.prepare(str(shapes), tmp_path / "data", replace(TINY_HEADS, embed_dim=8), workers=0)
    with pytest.raises(PairstillError, match="embed_dim is 16 there and 8 here"):
        api.distill(other, tmp_path / "set", pairs=4, bank=heads_bank)


def test_the_first_experts_of_a_bank_are_a_bank(heads_bank):
    part = heads_bank.first(2)
    assert part.experts == [0, 1]
    rows = [i for i, row in enumerate(heads_bank.checkpoints) if row.expert < 2]
    assert torch.equal(part.gram, heads_bank.gram[:, rows][:, :, rows])
    assert part.fingerprint() != heads_bank.fingerprint()
    assert Bank.open(heads_bank.folder).first(None).experts == heads_bank.experts
    with pytest.raises(PairstillError, match="not 9"):
        heads_bank.first(9)
