import pytest
import torch

from pairstill.errors import PairstillError
from pairstill.experts.teacher_weights import TEACHERS, merged
from tests.experts.conftest import ANCHOR, small_bank


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
