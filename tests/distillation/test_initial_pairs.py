import itertools
import json

import torch
import torch.nn.functional as F

from pairstill import api
from pairstill.distillation.diagnostics import BINS, merge_ratios_by_layer, pair_diagnostics
from pairstill.experts.model_stock import merge_ratio
from pairstill.features.subset_selection import PairFeatures, cells_of, mean_texts_of
from pairstill.methods.distributions import mdm
from pairstill.runtime.row_matrix import in_memory
from pairstill.sets.initial_record import read_initial_pairs
from pairstill.training.training_recipe import Recipe

QUICK = Recipe(epochs=2, batch_size=16)
SHORT = mdm.Settings(iterations=2, check_every=2, real_batch=8)


def unit(*shape, seed=0):
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def test_a_run_keeps_what_its_pairs_started_from(heads_data, heads_bank, tmp_path):
    coreset = api.distill(heads_data, tmp_path / "kmeans", "kmeans", 6)
    api.distill(heads_data, tmp_path / "mdm", "mdm", 6, heads_bank, settings=SHORT, student=QUICK)
    first = read_initial_pairs(tmp_path / "mdm" / "run")
    torch.testing.assert_close(first.pictures / 255, coreset.pictures(), atol=1 / 254, rtol=0)
    torch.testing.assert_close(first.texts, coreset.texts)
    assert first.captions == coreset.captions
    assert sum(first.cells) == len(heads_data.encoded().split("train").pairs.links)
    assert read_initial_pairs(tmp_path) is None


def test_noise_is_nobodys_neighbour(heads_data, heads_bank, tmp_path):
    settings = mdm.Settings(iterations=1, check_every=1, real_batch=8, init="noise")
    api.distill(heads_data, tmp_path / "mdm", "mdm", 6, heads_bank, settings=settings, student=QUICK)
    assert read_initial_pairs(tmp_path / "mdm" / "run").cells is None


def test_cells_and_their_mean_texts_are_as_one_would_count_them():
    features = PairFeatures(unit(20, 3), unit(30, 4, seed=1), torch.stack([torch.arange(30) % 20, torch.arange(30)], 1))
    rows, joint = torch.tensor([4, 11, 25]), in_memory(features.joint_rows())
    members = [[], [], []]
    for number, row in enumerate(joint):
        cosines = [torch.cosine_similarity(row, joint[centre], dim=0).item() for centre in rows]
        members[cosines.index(max(cosines))].append(number)
    cells = cells_of(features, rows)
    assert [torch.nonzero(cells == k).flatten().tolist() for k in range(3)] == members
    for found, cell in zip(mean_texts_of(features, cells), members, strict=True):
        torch.testing.assert_close(found, sum(features.texts[n] for n in cell) / len(cell))


def test_twins_leave_no_cell_empty():
    twins = torch.ones(3, 2)
    features = PairFeatures(twins, twins, torch.stack([torch.arange(3), torch.arange(3)], 1))
    assert torch.isfinite(mean_texts_of(features, cells_of(features, torch.tensor([0, 2])))).all()


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
