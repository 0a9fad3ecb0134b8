from dataclasses import replace

import torch

from pairstill.distillation.warm_up import candidates_after_warm_up, warm_up
from pairstill.features.subset_selection import choose_pairs
from pairstill.training.losses import info_nce
from pairstill.training.student_training import embed


def parameters(model):
    return torch.cat([value.flatten() for value in model.parameters()])


def loss(model, pairs):
    images, texts = embed(model, pairs.pairs.inputs, pairs.pairs.texts)
    return info_nce(images[pairs.pairs.links[:, 0]], texts[pairs.pairs.links[:, 1]]).item()


def test_every_method_with_a_seed_has_the_same_model_and_it_has_learnt(context):
    first, second = context("herding"), context("k-center")
    pairs = first.encoded.split("train")
    models = [warm_up(pairs, place, 3) for place in (first, second, replace(first, seed=1))]
    assert torch.equal(parameters(models[0]), parameters(models[1]))
    assert not torch.equal(parameters(models[0]), parameters(models[2]))
    assert loss(models[0], pairs) < loss(first.encoded.new_model(0), pairs) - 0.1


def test_the_model_is_shown_after_each_epoch(context):
    context, seen = context("herding"), []
    warm_up(context.encoded.split("train"), context, 3, lambda model: seen.append(parameters(model).clone()) or "")
    assert len(seen) == 3
    assert not torch.equal(seen[0], seen[1])


def test_candidates_are_drawn_as_random_pairs_are_one_of_each_picture(context):
    context = context("herding")
    pairs = context.encoded.split("train")
    rows, features = candidates_after_warm_up(pairs, context, 1)
    features_before = context.encoded.pair_features(pairs)
    assert torch.equal(rows, choose_pairs("random", features_before, len(pairs.images), context.seed))
    assert torch.equal(features.links, pairs.pairs.links[rows])
    assert features.images.shape[0] == len(pairs.images) and features.images.shape[1] == 16
