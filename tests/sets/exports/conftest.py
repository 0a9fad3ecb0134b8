import numpy as np
import torch

from pairstill.sets.exports.parts import Parts

INFO = {
    "method": "mdm",
    "normalisation": {"mean": [0.5] * 3, "std": [0.5] * 3},
    "dataset": {"name": "shapes", "license": "MIT"},
}


def parts(count=5, soft=False):
    """A small set on its way into an export; each pair differs from the others."""
    random = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (count, 8, 8, 3), generator=random).numpy().astype(np.uint8)
    texts = torch.randn(count, 4, generator=random)
    captions = [[f"ünïcode {row}", "another"] for row in range(count)]
    return Parts(pictures, texts, captions, torch.rand(count, count, generator=random) if soft else None, INFO)
