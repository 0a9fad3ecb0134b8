import pytest
import torch

from pairstill.distillation.diffusion_model import DiffusionModel, diversity

CAPTIONS = ["a dog", "two cats on a mat", "the sea"]


@pytest.fixture
def model(tiny_diffusion):
    return DiffusionModel(tiny_diffusion["model"], tiny_diffusion["judge"], "cpu")


def random(seed=0):
    return torch.Generator().manual_seed(seed)


def test_only_biases_and_norms_are_tuned_and_gradients_reach_them(model):
    pictures = torch.rand(3, 3, 16, 16, generator=random())
    restored = model.denoised(pictures, CAPTIONS, random(1))
    assert restored.shape == pictures.shape
    images, texts = model.judged(restored, CAPTIONS)
    assert images.shape == texts.shape == (3, 8)
    diversity(images, texts).backward()
    assert all(name.endswith("bias") or "norm" in name for name in model.tuned)
    assert sum(float(parameter.grad.abs().sum()) for parameter in model.tuned.values()) > 0
    frozen = [p for name, p in model._pipe.unet.named_parameters() if name not in model.tuned]
    assert frozen and all(p.grad is None and not p.requires_grad for p in frozen)


def test_a_perfect_guess_of_the_noise_restores_what_the_autoencoder_makes_of_the_picture(model, monkeypatch):
    pipe, pictures = model._pipe, torch.rand(2, 3, 16, 16, generator=random())
    drawn = []
    noise = DiffusionModel._noise
    monkeypatch.setattr(
        DiffusionModel, "_noise", lambda self, like, source: drawn.append(noise(self, like, source)) or drawn[-1]
    )

    class Oracle(torch.nn.Module):
        def forward(self, noisy, depth, encoder_hidden_states):
            return type("Guess", (), {"sample": drawn[-1]})

    monkeypatch.setattr(pipe, "unet", Oracle())
    restored = model.denoised(pictures, CAPTIONS[:2], random(1))
    with torch.no_grad():
        spread = pipe.vae.encode(pictures * 2 - 1).latent_dist
        expected = pipe.vae.decode(spread.mean + spread.std * drawn[0]).sample / 2 + 0.5
    torch.testing.assert_close(restored, expected, rtol=1e-3, atol=1e-3)


def test_clip_features_are_clips_own(model):
    pictures = torch.rand(3, 3, 16, 16, generator=random())
    images, texts = model.judged(pictures, CAPTIONS)
    from pairstill.distillation.diffusion_model import CLIP_MEAN, CLIP_STD

    pixels = (pictures - torch.tensor(CLIP_MEAN).view(3, 1, 1)) / torch.tensor(CLIP_STD).view(3, 1, 1)
    words = model._words(CAPTIONS, padding="max_length", truncation=True, return_tensors="pt")
    whole = model._judge(pixel_values=pixels, **words)
    unit = torch.nn.functional.normalize
    torch.testing.assert_close(unit(images, dim=-1), whole.image_embeds)
    torch.testing.assert_close(unit(texts, dim=-1), whole.text_embeds)


def test_diversity_is_the_mean_cosine_of_different_pairs():
    images, texts = torch.randn(4, 3, generator=random()), torch.randn(4, 3, generator=random(1))
    joint = [torch.cat(pair) for pair in zip(images, texts, strict=True)]
    cosines = [torch.cosine_similarity(joint[i], joint[j], dim=0) for i in range(4) for j in range(4) if i != j]
    torch.testing.assert_close(diversity(images, texts), torch.stack(cosines).mean())
