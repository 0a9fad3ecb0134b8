"""Fine-tune a CLIP-like model on a distilled set, the way open_clip trains: AdamW, warm-up, a learnt temperature.

    python examples/clip_style.py runs/demo/rehearsal [epochs]

The image tower is trained whole, end to end on the set's images; the text tower is a projector on its embeddings.
"""

import math
import sys

import torch
from torch.nn.functional import cross_entropy, normalize

import pairstill
from pairstill.towers.image_encoder import load_image_encoder

pairs = pairstill.load(sys.argv[1])
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 10
loader = torch.utils.data.DataLoader(pairs, batch_size=min(32, len(pairs)), shuffle=True, drop_last=True)


class Clip(torch.nn.Module):
    """Two towers and the logarithm of an inverse temperature, as CLIP has them."""

    def __init__(self, width=256):
        super().__init__()
        self.visual = load_image_encoder(pairs.info["towers"]["image"])
        self.image_projection = torch.nn.Linear(self.visual.width, width, bias=False)
        self.text_projection = torch.nn.Linear(pairs.texts.shape[1], width, bias=False)
        self.logit_scale = torch.nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images, texts):
        """Unit vectors of both, and the scale of their cosines."""
        image_features = normalize(self.image_projection(self.visual(images)), dim=-1)
        text_features = normalize(self.text_projection(texts), dim=-1)
        return image_features, text_features, self.logit_scale.exp().clamp(max=100)


model = Clip()
gains = [p for p in model.parameters() if p.ndim < 2]
weights = [p for p in model.parameters() if p.ndim >= 2]
groups = [{"params": gains, "weight_decay": 0.0}, {"params": weights, "weight_decay": 0.2}]
optimiser = torch.optim.AdamW(groups, lr=5e-4, betas=(0.9, 0.98), eps=1e-6)
steps = epochs * len(loader)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 5e-4, total_steps=steps, pct_start=0.1)
for epoch in range(epochs):
    for images, texts in loader:
        image_features, text_features, scale = model(images, texts)
        logits = scale * image_features @ text_features.T
        targets = torch.arange(len(logits))
        loss = (cross_entropy(logits, targets) + cross_entropy(logits.T, targets)) / 2
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    print(f"epoch {epoch + 1}/{epochs}: loss {loss.item():.3f}, temperature {1 / scale.item():.3f}")
