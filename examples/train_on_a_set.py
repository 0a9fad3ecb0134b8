"""Train a retrieval model on a distilled set with plain PyTorch.

    python examples/train_on_a_set.py runs/demo/rehearsal

The set's images go through the frozen image encoder once; then two small projectors learn to match them to the
text embeddings that come with the set.
"""

import sys

import torch
from torch.nn.functional import cross_entropy, normalize

import pairstill
from pairstill.towers.image_encoder import load_image_encoder

pairs = pairstill.load(sys.argv[1])
encoder = load_image_encoder(pairs.info["towers"]["image"])
with torch.no_grad():
    images, texts = encoder(pairs.images), pairs.texts
image_head, text_head = torch.nn.Linear(images.shape[1], 256), torch.nn.Linear(texts.shape[1], 256)
optimiser = torch.optim.SGD([*image_head.parameters(), *text_head.parameters()], lr=0.1, momentum=0.9)
for _step in range(100):
    logits = normalize(image_head(images), dim=1) @ normalize(text_head(texts), dim=1).T / 0.07
    targets = torch.arange(len(logits))
    loss = (cross_entropy(logits, targets) + cross_entropy(logits.T, targets)) / 2
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
found = (logits.argmax(dim=1) == targets).float().mean()
print(f"{len(pairs)} pairs, loss {loss.item():.3f}, {100 * found:.0f} % of the images find their own text")
