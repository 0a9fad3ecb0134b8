import torch

from pairstill import api
from pairstill.methods.distributions import mdm
from pairstill.sets.initial_record import read_initial_pairs
from pairstill.training.training_recipe import Recipe

QUICK = Recipe(epochs=2, batch_size=16)
SHORT = mdm.Settings(iterations=2, check_every=2, real_batch=8)


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
