"""Fixtures: a small dataset with small random towers, prepared once, on which everything runs in seconds."""

import contextlib
import io
import json
import os
import shutil
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers share the cores

import pairstill  # noqa: F401  (before torch: it sets how OpenMP threads wait)

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import pytest
import torch
from PIL import Image

from pairstill import api
from pairstill.distillation.contract import Context
from pairstill.features.encoded_dataset import EncodedDataset
from pairstill.methods import METHODS
from pairstill.runtime.run_folder import Run
from pairstill.towers.two_tower import Towers
from pairstill.training.training_recipe import Recipe

ROOT = Path(__file__).parents[1]
"""The project's folder."""

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 180, 60),
    "blue": (40, 70, 220),
    "yellow": (230, 210, 40),
    "white": (240, 240, 240),
    "black": (15, 15, 15),
    "purple": (150, 40, 180),
    "orange": (240, 140, 30),
}
SHAPES = ("disc", "square", "stripe", "cross")


def draw(colour: str, shape: str, ground: str, seed: int, size: int = 32) -> bytes:
    """A PNG of a coloured shape on a coloured ground, shifted and noised by its seed."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:size, 0:size] - size / 2 + random.integers(-3, 4)
    masks = {
        "disc": x**2 + y**2 < (size / 3) ** 2,
        "square": (abs(x) < size / 4) & (abs(y) < size / 4),
        "stripe": abs(y) < size / 8,
        "cross": (abs(x) < size / 10) | (abs(y) < size / 10),
    }
    pixels = np.where(masks[shape][..., None], COLOURS[colour], COLOURS[ground]).astype(float)
    pixels += random.normal(0, 8, pixels.shape)
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def write_shapes(folder: Path, count: int = 160) -> Path:
    """A folder dataset of `count` images with two captions each and a split column."""
    folder.mkdir(parents=True, exist_ok=True)
    names = list(COLOURS)
    rows = []
    for number in range(count):
        colour, shape = names[number % 8], SHAPES[(number // 8) % 4]
        ground = names[(number % 8 + 1 + (number // 32) % 7) % 8]
        (folder / f"{number:03d}.png").write_bytes(draw(colour, shape, ground, number))
        split = ("train", "train", "train", "val", "test")[(number // 8) % 5]
        captions = [f"a {colour} {shape} on {ground}, number {number}", f"image {number}: {shape} in {colour}"]
        rows.append({"file_name": f"{number:03d}.png", "captions": captions, "split": split})
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def write_tiny_bert(folder: Path, words: list[str]) -> Path:
    """A text encoder 16 wide that knows these words, with random weights."""
    from pairstill.towers.torchvision_shim import ensure_torchvision

    ensure_torchvision()
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=64, **sizes)).save_pretrained(folder)
    return folder


TINY_HEADS = Towers(image="test_efficientnet@random", text="minilm", train="heads", image_size=32, embed_dim=16)
TINY_FULL = Towers(image="test_nfnet@random", text="minilm", train="full", image_size=32)
TINY_RECIPE = Recipe(epochs=2, batch_size=32)


@contextlib.contextmanager
def hidden_test_split():
    """Whoever asks for the test split meanwhile fails."""
    split = EncodedDataset.split

    def all_but_test(self, name, *rest):
        assert name != "test", "the test split was asked for"
        return split(self, name, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EncodedDataset, "split", all_but_test)
        yield


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    return write_shapes(tmp_path_factory.mktemp("shapes"))


@pytest.fixture(scope="session")
def heads_data(shapes, tmp_path_factory):
    return api.prepare(str(shapes), tmp_path_factory.mktemp("prepared") / "heads", TINY_HEADS, workers=0)


@pytest.fixture(scope="session")
def full_data(shapes, tmp_path_factory):
    return api.prepare(str(shapes), tmp_path_factory.mktemp("prepared") / "full", TINY_FULL, workers=0)


@pytest.fixture(scope="session")
def heads_bank(heads_data, tmp_path_factory):
    return api.train_experts(heads_data, tmp_path_factory.mktemp("bank") / "heads", 3, TINY_RECIPE)


@pytest.fixture(scope="session")
def full_bank(full_data, tmp_path_factory):
    return api.train_experts(full_data, tmp_path_factory.mktemp("bank") / "full", 2, TINY_RECIPE)


@pytest.fixture(scope="session")
def tiny_diffusion(tmp_path_factory):
    """Folders of a tiny latent diffusion pipeline and of a tiny CLIP, with random weights."""
    from pairstill.towers.torchvision_shim import ensure_torchvision

    ensure_torchvision()
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPTextModel, CLIPTokenizerFast

    folder = tmp_path_factory.mktemp("diffusion")
    letters = [*"abcdefghijklmnopqrstuvwxyz", *(f"{letter}</w>" for letter in "abcdefghijklmnopqrstuvwxyz")]
    vocabulary = {token: row for row, token in enumerate([*letters, "<|startoftext|>", "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    files = {"vocab_file": str(folder / "vocab.json"), "merges_file": str(folder / "merges.txt")}
    tokenizer = CLIPTokenizerFast(**files, model_max_length=12)
    ends = {"bos_token_id": vocabulary["<|startoftext|>"], "eos_token_id": vocabulary["<|endoftext|>"]}
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**small, **ends, "vocab_size": len(vocabulary), "max_position_embeddings": 12, "projection_dim": 8}
    vision = {**small, "image_size": 16, "patch_size": 8, "projection_dim": 8}
    shape = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        unet = UNet2DConditionModel(
            sample_size=8,
            cross_attention_dim=16,
            attention_head_dim=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            **shape,
        )
        vae = AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, **shape
        )
        pipe = StableDiffusionPipeline(
            vae, CLIPTextModel(CLIPTextConfig(**text)), tokenizer, unet, DDIMScheduler(), None, None, None, False
        )
        judge = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))
    pipe.save_pretrained(folder / "pipe")
    judge.save_pretrained(folder / "clip")
    tokenizer.save_pretrained(folder / "clip")
    return {"model": str(folder / "pipe"), "judge": str(folder / "clip")}


@pytest.fixture(scope="session")
def sets(tmp_path_factory, heads_data, heads_bank):
    """A folder as the demo leaves one: two sets with their runs, and scores."""
    from pairstill.methods.distributions import mdm

    folder, quick = tmp_path_factory.mktemp("sets"), Recipe(epochs=3, batch_size=16)
    short = mdm.Settings(iterations=4, check_every=2, real_batch=8, image_lr=10.0)
    for seed in range(10):  # until validation chooses images that moved, so that there is something to show
        made = api.distill(heads_data, folder / "mdm", "mdm", 6, heads_bank, settings=short, seed=seed, student=quick)
        if made.info["chosen"]["iteration"] > 0:
            break
        shutil.rmtree(folder / "mdm")
    api.distill(heads_data, folder / "random", "random", 6)
    rows = []
    for method in ("random", "mdm"):
        rows.append(api.evaluate(folder / method, heads_data, seeds=2, student=quick).to_dict())
    full = {**rows[0], "method": "full", "pairs": 192, "mean": 2 * rows[0]["mean"]}
    (folder / "results.json").write_text(json.dumps([*rows, full]))
    return folder


@pytest.fixture
def context(heads_data, tmp_path):
    """`context(method, count, **settings)`: what a coreset may use; one with a warm-up has two epochs."""

    def make(method, count=6, **settings):
        kind = METHODS[method].settings
        chosen = kind(**{**({"epochs": 2} if hasattr(kind, "epochs") else {}), **settings})
        return Context(method, heads_data.encoded(), count, 0, chosen, Run(tmp_path / "run", {}, resume=True))

    return make
