import pytest

from tests.support.coresets import candidates_of, rows_chosen, warm_vectors


def test_k_center_takes_at_each_step_the_farthest_pair(context, monkeypatch):
    context = context("k-center", count=40)  # enough that other features would choose otherwise
    pairs = context.encoded.split("train")
    chosen = rows_chosen(pairs, context, "k-center", monkeypatch)
    images, texts = warm_vectors(pairs, context)
    candidates = candidates_of(pairs, context)
    assert chosen[0] in candidates
    for step in range(1, len(chosen)):
        distances = {}
        for row in candidates:
            others = chosen[:step]
            distances[row] = min((images[row] + texts[row] - images[o] - texts[o]).norm().item() for o in others)
        assert distances[chosen[step]] == pytest.approx(max(distances.values()), rel=1e-5)
