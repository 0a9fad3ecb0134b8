import pytest
import torch

from tests.support.coresets import candidates_of, rows_chosen, warm_vectors


def test_herding_takes_at_each_step_the_pair_that_keeps_the_mean_nearest(context, monkeypatch):
    context = context("herding")
    pairs = context.encoded.split("train")
    chosen = rows_chosen(pairs, context, "herding", monkeypatch)
    joint = torch.cat(warm_vectors(pairs, context), dim=-1)
    candidates = candidates_of(pairs, context)
    mean = joint[candidates].mean(0)
    for step, taken in enumerate(chosen):
        free = [row for row in candidates if row not in chosen[:step]]
        gaps = {row: (joint[[*chosen[:step], row]].mean(0) - mean).norm().item() for row in free}
        assert gaps[taken] == pytest.approx(min(gaps.values()), rel=1e-5)
        assert gaps[taken] < 0.5 * max(gaps.values())
