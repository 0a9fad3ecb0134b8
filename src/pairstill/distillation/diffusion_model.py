"""A text-to-image diffusion model from `diffusers`, with the CLIP that judges its images (for EDGE)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from pairstill.errors import PairstillError
from pairstill.towers.torchvision_shim import ensure_torchvision
from pairstill.towers.weights import hub_reachable

TUNED = ("bias", "norm")
"""Parts of names of the parameters that are tuned: biases and norms only, as DiffFit does."""


class DiffusionModel:
    """A latent diffusion pipeline whose noise predictor can be tuned through the images that it would make.

    Attributes:
        tuned: The parameters that are trained, by name; all others are frozen.
    """

    def __init__(self, model: str, judge: str, device: str) -> None:
        ensure_torchvision()
        try:
            from diffusers import StableDiffusionPipeline
        except ImportError:
            raise PairstillError("method edge needs diffusers: pip install 'pairstill[edge]'.") from None
        from transformers import CLIPModel, CLIPTokenizerFast

        self.device = torch.device(device)
        unchecked = {"safety_checker": None, "requires_safety_checker": False}
        self._pipe: Any = _load(StableDiffusionPipeline, model, use_safetensors=True, **unchecked).to(self.device)
        self._pipe.set_progress_bar_config(disable=True)
        kind = self._pipe.scheduler.config.get("prediction_type", "epsilon")
        if kind != "epsilon":
            raise PairstillError(f"{model} predicts '{kind}'; method edge needs a model that predicts the noise.")
        self._judge: Any = _load(CLIPModel, judge).to(self.device).eval().requires_grad_(False)
        self._words: Any = _load(CLIPTokenizerFast, judge)
        for part in (self._pipe.vae, self._pipe.text_encoder, self._pipe.unet):
            part.eval().requires_grad_(False)
        named = self._pipe.unet.named_parameters()
        self.tuned: dict[str, Tensor] = {n: p.requires_grad_() for n, p in named if any(word in n for word in TUNED)}

    def denoised(self, pictures: Tensor, captions: Sequence[str], random: torch.Generator) -> Tensor:
        """The images as the model would restore them from noise at random depths, given their captions.

        Args:
            pictures: [N, 3, S, S] in 0...1.
            captions: N texts.
            random: Draws latents, depths and noise; on the CPU.

        Returns:
            [N, 3, S, S], about 0...1, with gradients to `tuned`.
        """
        pipe = self._pipe
        with torch.no_grad():
            spread = pipe.vae.encode(pictures.to(self.device) * 2 - 1).latent_dist
            latents = spread.mean + spread.std * self._noise(spread.mean, random)
            latents = latents * pipe.vae.config.scaling_factor
            prompt = pipe.text_encoder(self._tokens(pipe.tokenizer, captions)["input_ids"])[0]
        steps = pipe.scheduler.config.num_train_timesteps
        depth = torch.randint(steps, (len(latents),), generator=random).to(self.device)
        noise = self._noise(latents, random)
        kept = pipe.scheduler.alphas_cumprod.to(self.device)[depth].view(-1, 1, 1, 1)
        noisy = kept.sqrt() * latents + (1 - kept).sqrt() * noise
        guess = pipe.unet(noisy, depth, encoder_hidden_states=prompt).sample
        clean = (noisy - (1 - kept).sqrt() * guess) / kept.sqrt()
        restored: Tensor = pipe.vae.decode(clean / pipe.vae.config.scaling_factor).sample
        return restored / 2 + 0.5

    def judged(self, pictures: Tensor, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """CLIP's features of images in 0...1 and of captions, [N, d] each."""
        size = self._judge.config.vision_config.image_size
        squares = interpolate(pictures, (size, size), mode="bilinear", antialias=True, align_corners=False)
        mean, std = (torch.tensor(v, device=self.device).view(3, 1, 1) for v in (CLIP_MEAN, CLIP_STD))
        words = self._tokens(self._words, captions)
        images = self._judge.visual_projection(self._judge.vision_model((squares - mean) / std).pooler_output)
        return images, self._judge.text_projection(self._judge.text_model(**words).pooler_output)

    @torch.no_grad()
    def sample(self, caption: str, size: int, steps: int, guidance: float, random: torch.Generator) -> Tensor:
        """A new image [3, size, size] in 0...1 for a caption."""
        made = self._pipe(
            caption, num_inference_steps=steps, guidance_scale=guidance, generator=random, output_type="pt"
        ).images.float()
        return interpolate(made, (size, size), mode="bilinear", antialias=True, align_corners=False)[0].cpu()

    def _tokens(self, tokenizer: Any, captions: Sequence[str]) -> Any:
        return tokenizer(list(captions), padding="max_length", truncation=True, return_tensors="pt").to(self.device)

    def _noise(self, like: Tensor, random: torch.Generator) -> Tensor:
        return torch.randn(like.shape, generator=random).to(like)


CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def diversity(images: Tensor, texts: Tensor) -> Tensor:
    """The mean cosine between different pairs' joined features, [N, d] each: low where pairs differ."""
    joint = torch.nn.functional.normalize(torch.cat([images, texts], dim=-1), dim=-1)
    cosines = joint @ joint.T
    n = len(joint)
    return (cosines.sum() - cosines.diagonal().sum()) / max(1, n * (n - 1))


def _load(kind: Any, name: str, **options: Any) -> Any:
    """`from_pretrained` from a folder or the hub, without a wait where there is no network."""
    local = Path(name).expanduser().is_dir()
    offline = local or not hub_reachable()
    try:
        return kind.from_pretrained(
            str(Path(name).expanduser()) if local else name, local_files_only=offline, **options
        )
    except (OSError, ValueError) as error:
        if local or not offline:
            raise PairstillError(f"{name} can't be loaded as {kind.__name__}: {error}.") from error
        raise PairstillError(
            f"{name} is needed from the hub, which can't be reached, and is not in its cache. No package carries it: "
            "download it where there is a network and give the path of the folder."
        ) from error
