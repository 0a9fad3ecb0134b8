import itertools
import json

import torch
import torch.nn.functional as F

from pairstill import api
from pairstill.distillation.diagnostics import BINS, merge_ratios_by_layer, pair_diagnostics
from pairstill.experts.model_stock import merge_ratio
from tests.distillation.test_initial_pairs import QUICK, SHORT
from tests.support.vectors import unit


def test_diagnostics_count_cosines_as_one_would():
    real, first, last = ((unit(n, 5, seed=n), unit(n, 5, seed=n + 50)) for n in (7, 4, 5))
    found = pair_diagnostics(real, first, last)
    cosines = [float(v @ t) for v, t in zip(*last, strict=True)]
    expected = [sum(1 for c in cosines if low <= BINS * (c + 1) / 2 < low + 1) / 5 for low in range(BINS)]
    assert found["match"]["distilled"] == [round(share, 5) for share in expected]
    joint = [F.normalize(v - t, dim=0) for v, t in zip(*first, strict=True)]
    pairwise = [float(joint[i] @ joint[j]) for i in range(4) for j in range(i)]
    mean = (
        sum(
            (index + 0.5) / BINS * 2 - 1
            for index in range(BINS)
            for _ in range(round(6 * found["discrepancy"]["initial"][index]))
        )
        / 6
    )
    assert abs(mean - sum(pairwise) / 6) < 1 / BINS
    for kind in ("match", "agreement", "discrepancy"):
        assert all(abs(sum(shares) - 1) < 1e-3 for shares in found[kind].values())


def test_ratios_are_those_of_the_merge(heads_bank, heads_data, tmp_path):
    bank = heads_bank
    found = merge_ratios_by_layer(bank, torch.Generator().manual_seed(0), 2)
    assert [row["layer"] for row in found] == list(bank.anchor)
    couples = itertools.combinations(range(len(bank.checkpoints)), 2)
    different = [[a, b] for a, b in couples if bank.checkpoints[a].expert != bank.checkpoints[b].expert]
    every = torch.stack([merge_ratio(bank.gram[:, rows][:, :, rows]) for rows in different])
    for number, row in enumerate(found):
        assert every[:, number].min() - 1e-9 <= row["mean"] <= every[:, number].max() + 1e-9
    api.distill(heads_data, tmp_path / "mdm", "mdm", 6, bank, settings=SHORT, student=QUICK)
    written = json.loads((tmp_path / "mdm/run/diagnostics.json").read_text())
    assert len(written["ratios"]) == len(bank.anchor)
