"""What the methods that choose real pairs chose, and out of what."""

import torch.nn.functional as F

from pairstill.distillation import warm_up
from pairstill.methods import METHODS
from pairstill.training.student_training import embed


def rows_chosen(pairs, context, method, monkeypatch):
    """The rows of links that a method chooses, in its order."""
    seen = []
    module = METHODS[method].fit.__globals__
    monkeypatch.setitem(module, "coreset", lambda pairs, context, rows: seen.append((context.method, rows)))
    METHODS[method].fit(pairs, context)
    name, rows = seen[0]
    assert name == method
    return rows.tolist()


def warm_vectors(pairs, context):
    """Unit vectors of both sides of every pair after the warm-up, in float64."""
    model = warm_up.warm_up(pairs, context, context.settings.epochs)
    images, texts = embed(model, pairs.pairs.inputs, pairs.pairs.texts)
    links = pairs.pairs.links
    return F.normalize(images.double(), dim=-1)[links[:, 0]], F.normalize(texts.double(), dim=-1)[links[:, 1]]


def candidates_of(pairs, context):
    """The candidates' rows; each image is there once, with a caption of its own."""
    rows, _ = warm_up.candidates_after_warm_up(pairs, context, context.settings.epochs)
    pictures = pairs.pairs.links[rows, 0].tolist()
    assert sorted(pictures) == list(range(len(pairs.images)))
    return rows.tolist()
