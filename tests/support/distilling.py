"""Distillations that take a second, for tests of what is around them."""

import functools

from pairstill import api
from pairstill.training.training_recipe import Recipe

QUICK = Recipe(epochs=4, momentum=0.9, batch_size=16)

distill = functools.partial(api.distill, student=QUICK)
"""Students that choose an iteration train for four epochs: what is chosen does not matter here."""


def files_of(folder):
    names = ("images.safetensors", "texts.safetensors", "captions.jsonl", "distilled.json", "README.md")
    return {name: (folder / name).read_bytes() for name in names}
