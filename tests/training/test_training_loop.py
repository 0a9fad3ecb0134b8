import pytest
import torch

from pairstill.errors import PairstillError
from pairstill.features.training_pairs import TensorInputs, TrainingPairs
from pairstill.training import training_loop
from pairstill.training.student_training import model_recall
from pairstill.training.training_loop import batches, one_link_per_image, train
from pairstill.training.training_recipe import Recipe
from tests.training.conftest import identity


def test_batches_visit_every_row_once():
    seen = torch.cat(list(batches(10, 4, torch.Generator().manual_seed(0))))
    assert sorted(seen.tolist()) == list(range(10))
    assert len(torch.cat(list(batches(9, 4, torch.Generator().manual_seed(0))))) == 8  # one left alone is dropped


@pytest.mark.parametrize("kind", ["heads_data", "full_data"])
def test_training_learns_and_repeats_to_the_bit(kind, request):
    encoded = request.getfixturevalue(kind).encoded()
    pairs = encoded.split("train").pairs
    recipe = Recipe(epochs=6, lr=0.1, batch_size=32)
    models = [encoded.new_model(1) for _ in range(2)]
    before = model_recall(models[0], encoded.split("train")).mean
    for model in models:
        train(model, pairs, recipe, seed=2)
    assert model_recall(models[0], encoded.split("train")).mean > before
    first, second = (dict(model.named_parameters()) for model in models)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_step_size_falls_at_half(heads_data, monkeypatch):
    encoded = heads_data.encoded()
    seen = []
    original = torch.optim.SGD.step
    monkeypatch.setattr(
        torch.optim.SGD, "step", lambda self, *a: (seen.append(self.param_groups[0]["lr"]), original(self, *a))[1]
    )
    pairs = TrainingPairs(TensorInputs(torch.randn(8, encoded.image_encoder.width)), torch.randn(8, 384), identity(8))
    train(encoded.new_model(0), pairs, Recipe(epochs=4, lr=0.2, decay=0.1), seed=0)
    assert seen == pytest.approx([0.2, 0.2, 0.02, 0.02])


def test_along_a_cosine_the_step_size_falls_with_every_step(heads_data, monkeypatch):
    encoded, seen, original = heads_data.encoded(), [], torch.optim.SGD.step
    monkeypatch.setattr(
        torch.optim.SGD, "step", lambda self, *a: (seen.append(self.param_groups[1]["lr"]), original(self, *a))[1]
    )
    pairs = TrainingPairs(TensorInputs(torch.randn(8, encoded.image_encoder.width)), torch.randn(8, 384), identity(8))
    recipe = Recipe(epochs=2, lr=0.1, text_lr=0.2, batch_size=4, schedule="cosine")
    train(encoded.new_model(0), pairs, recipe, seed=0)
    assert seen == pytest.approx([0.2, 0.1 + 0.1 * 0.5**0.5, 0.1, 0.1 - 0.1 * 0.5**0.5])


def test_one_caption_per_picture_is_drawn_anew():
    links = torch.stack([torch.arange(6).repeat_interleave(5), torch.arange(30)], 1)
    drawn = [one_link_per_image(links, torch.Generator().manual_seed(seed)) for seed in range(20)]
    for chosen in drawn:
        assert sorted(chosen[:, 0].tolist()) == list(range(6))
        assert torch.equal(chosen[:, 1] // 5, chosen[:, 0])
    assert len({tuple(chosen[:, 1].tolist()) for chosen in drawn}) > 15


def test_divergence_is_said(heads_data):
    encoded = heads_data.encoded()
    with pytest.raises(PairstillError, match=r"training diverged in epoch \d+: the loss was .* Lower the lr"):
        train(encoded.new_model(0), encoded.split("train").pairs, Recipe(epochs=3, lr=1e30), seed=0)


def test_where_it_is_faster_a_backbone_computes_in_bfloat16_and_heads_never_do(full_data, heads_data, monkeypatch):
    recipe, seen = Recipe(epochs=1, lr=0.01, batch_size=32), []

    def trained(data, kinds):
        monkeypatch.setattr(training_loop, "FASTER_IN_BFLOAT16", kinds)
        encoded = data.encoded()
        model = encoded.new_model(0)
        seen.clear()
        model.text_head.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
        model.body.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
        train(model, encoded.split("train").pairs, recipe, seed=0)
        return torch.cat([value.detach().flatten() for value in model.parameters()])

    usual, mixed = trained(full_data, ("cuda",)), trained(full_data, ("cpu",))
    assert torch.bfloat16 in seen
    assert mixed.dtype == torch.float32
    before = torch.cat([value.detach().flatten() for value in full_data.encoded().new_model(0).parameters()])
    assert 0 < (mixed - usual).norm() < 0.2 * (usual - before).norm()
    trained(heads_data, ("cpu",))
    assert set(seen) == {torch.float32}
