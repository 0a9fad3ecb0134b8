"""EDGE (Zhao et al., 2025): pairs made by a diffusion model that was tuned to match its captions and to vary.

The noise predictor is tuned through the images that it would restore, judged by a frozen CLIP:

    contrast * InfoNCE(CLIP(image), CLIP(caption)) + diversity * mean cosine between different pairs

Then an image is sampled for each of N real captions, drawn at random. EDGE also writes more captions for its images
with a large language model; that part is not here: each pair keeps the caption that its image was made from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from pairstill.data.decoding import load_pixels
from pairstill.distillation.contract import Context, Method, finished
from pairstill.distillation.diffusion_model import DiffusionModel, diversity
from pairstill.distillation.setting_checks import check_settings
from pairstill.errors import PairstillError
from pairstill.features.encoded_dataset import EncodedSplit
from pairstill.features.subset_selection import choose_pairs
from pairstill.runtime.progress import progress
from pairstill.runtime.run_folder import Interrupted
from pairstill.runtime.seeds import generator
from pairstill.sets.distilled_set import DistilledSet
from pairstill.training.losses import info_nce
from pairstill.training.training_loop import batches


@dataclass(frozen=True)
class Settings:
    """Settings of EDGE.

    Args:
        model: Diffusion pipeline, by its name on the hub or its folder.
        judge: CLIP model, likewise.
        epochs: Epochs of tuning; 0 samples from the model as it is.
        batch_size: Pairs in a step of tuning.
        lr: Step size of tuning.
        contrast: Weight of InfoNCE.
        diversity: Weight of the cosine between different pairs.
        temperature: Of InfoNCE.
        tuning_size: Pixels of the images that it is tuned on.
        sampling_steps: Denoising steps for a new image.
        guidance: How far the caption pulls a new image.
    """

    model: str = "stable-diffusion-v1-5/stable-diffusion-v1-5"
    judge: str = "openai/clip-vit-base-patch32"
    epochs: int = 10
    batch_size: int = 128
    lr: float = 1e-3
    contrast: float = 1.0
    diversity: float = 1.0
    temperature: float = 0.1
    tuning_size: int = 224
    sampling_steps: int = 50
    guidance: float = 7.5

    def __post_init__(self) -> None:
        counts = {"epochs": 0, "batch_size": 2, "tuning_size": 8, "sampling_steps": 1}
        check_settings(self, counts, ("lr", "temperature"))


def fit(pairs: EncodedSplit, context: Context) -> DistilledSet:
    """Tune the model on the real pairs, then sample an image for each of some real captions."""
    settings: Settings = context.settings
    rows = choose_pairs("random", context.encoded.pair_features(pairs), context.count, context.seed)
    model = DiffusionModel(settings.model, settings.judge, context.encoded.device)
    with context.run.interruptible():
        tune(model, pairs, context)
        texts = pairs.pairs.links[rows][:, 1]
        images = _sample(model, [pairs.captions[row] for row in texts.tolist()], context)
    pixels = context.encoded.image_encoder.normalise(images)
    return finished(pairs, context, pixels, pairs.pairs.texts[texts].clone())


def tune(model: DiffusionModel, pairs: EncodedSplit, context: Context) -> None:
    """Train the model's biases and norms; goes on from the last finished epoch of a run that was stopped."""
    settings: Settings = context.settings
    done = 0
    if (saved := context.run.load_checkpoint()) is not None:
        tensors, state = saved
        done = int(state["epochs"])
        for name, parameter in model.tuned.items():
            parameter.data.copy_(tensors[name])
    optimiser = torch.optim.SGD(model.tuned.values(), lr=settings.lr)
    links = pairs.pairs.links
    with progress("edge: tuning", settings.epochs * len(links), done * len(links)) as advance:
        for epoch in range(done, settings.epochs):
            for step, rows in enumerate(
                batches(len(links), settings.batch_size, generator(context.seed, "edge", epoch))
            ):
                loss = tuning_loss(model, pairs, rows, context, generator(context.seed, "edge", epoch, step))
                optimiser.zero_grad()
                loss.backward()
                _refuse_divergence(model, loss.item(), epoch, step)
                optimiser.step()
                context.run.event("step", epoch=epoch, step=step, loss=loss.item())
                advance(len(rows), note=f"loss {loss.item():.3f}")
                _stop_if_asked(context)
            context.run.save_checkpoint(dict(model.tuned), {"epochs": epoch + 1})


def _refuse_divergence(model: DiffusionModel, loss: float, epoch: int, step: int) -> None:
    norm = torch.nn.utils.clip_grad_norm_(model.tuned.values(), math.inf)
    if not (math.isfinite(loss) and torch.isfinite(norm)):
        raise PairstillError(
            f"the tuning diverged in epoch {epoch + 1}, step {step + 1}: the loss was {loss:.3g} and the norm of its "
            f"gradient {norm.item():.3g}. Finished epochs are kept. Lower --settings.lr, and start in another folder."
        )


def tuning_loss(
    model: DiffusionModel, pairs: EncodedSplit, rows: Tensor, context: Context, random: torch.Generator
) -> Tensor:
    """EDGE's loss on some rows of the training links."""
    settings: Settings = context.settings
    image_rows, text_rows = pairs.pairs.links[rows].unbind(1)
    blocks = load_pixels(context.encoded.dataset.images, pairs.images[image_rows].tolist(), settings.tuning_size)
    pictures = torch.cat([torch.from_numpy(block) for block in blocks]).float() / 255
    captions = [pairs.captions[row] for row in text_rows.tolist()]
    images, texts = model.judged(model.denoised(pictures, captions, random), captions)
    contrast = info_nce(normalize(images, dim=-1), normalize(texts, dim=-1), settings.temperature)
    return settings.contrast * contrast + settings.diversity * diversity(images, texts)


def _sample(model: DiffusionModel, captions: Sequence[str], context: Context) -> Tensor:
    settings: Settings = context.settings
    size = context.encoded.towers.image_size
    made = []
    with progress(f"edge: {len(captions)} images", len(captions)) as advance:
        for number, caption in enumerate(captions):
            random = generator(context.seed, "edge", "sample", number)
            made.append(model.sample(caption, size, settings.sampling_steps, settings.guidance, random))
            advance()
            _stop_if_asked(context)
    return torch.stack(made)


def _stop_if_asked(context: Context) -> None:
    if context.run.stopping:
        raise Interrupted("stopped; the epochs of tuning that were finished are kept.")


METHOD = Method("edge", "sample images from a tuned diffusion model (EDGE; extra 'edge')", Settings, fit)
