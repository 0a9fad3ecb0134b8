"""Text encoders: any transformers model, as captions → sentence vectors, frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from pairstill.errors import PairstillError, unknown
from pairstill.runtime.files import digest_of, digest_of_tensors, read_json
from pairstill.runtime.seeds import global_seed
from pairstill.towers import onnx_bert
from pairstill.towers.npm_weights import npm_folder
from pairstill.towers.torchvision_shim import ensure_torchvision
from pairstill.towers.weights import (
    TEXT_PRESETS,
    Pooling,
    TextPreset,
    TextSource,
    cache_folder,
    hub_reachable,
    no_network,
    resolve_text,
    text_package_folder,
)

TextPooling = Literal["auto", "cls", "mean"]


def pool(hidden: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Sentence vectors [N, width] of token vectors [N, T, width] under a 0/1 mask [N, T].

    "cls": the first token's vector. "mean": Σₜ maskₜ hₜ / Σₜ maskₜ.
    """
    if pooling == "cls":
        return hidden[:, 0]
    weights = mask.to(hidden.dtype).unsqueeze(-1)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)


class TextEncoder(nn.Module):
    """A frozen text model with its tokenizer. Vectors are not L2-normalised.

    Attributes:
        name: The name it was asked for by.
        width: Length of a sentence vector.
        pooling: "cls" or "mean".
        fingerprint: Digest of weights, vocabulary and settings: a key for caches.
    """

    def __init__(
        self, network: nn.Module, tokenizer: Any, name: str, pooling: Pooling, max_words: int, lowercase: bool
    ) -> None:
        super().__init__()
        self.network = network.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.name = name
        self.pooling: Pooling = pooling
        self.max_words = max_words
        self.lowercase = lowercase
        config = cast(Any, network).config
        self.width = int(config.hidden_size)
        # Two positions fewer than the table has: RoBERTa and MPNet keep the first two for padding.
        self.max_tokens = min(tokenizer.model_max_length, getattr(config, "max_position_embeddings", 514) - 2, 512)
        settings = [pooling, max_words, lowercase, self.max_tokens, tokenizer.get_vocab()]
        self.fingerprint = digest_of([digest_of_tensors(network.state_dict()), settings])

    def train(self, mode: bool = True) -> TextEncoder:
        """Stay in eval mode: the encoder is frozen."""
        return super().train(False)

    def prepare(self, caption: str) -> str:
        """Lower-case a caption and cut it to `max_words` words."""
        return " ".join((caption.lower() if self.lowercase else caption).split()[: self.max_words])

    @torch.no_grad()
    def encode(
        self, captions: Sequence[str], batch_size: int = 128, on_done: Callable[[int], None] | None = None
    ) -> Tensor:
        """Sentence vectors [N, width], float32, in the captions' order.

        Args:
            captions: N captions.
            batch_size: Captions per forward pass. Neighbours are of like length, so that little is padding.
            on_done: Called after each batch with the number of captions that it held.
        """
        vectors = torch.empty(len(captions), self.width)
        if not captions:
            return vectors
        texts = [self.prepare(caption) for caption in captions]
        tokens = self.tokenizer(texts, padding=False, truncation=True, max_length=self.max_tokens)["input_ids"]
        order = sorted(range(len(tokens)), key=lambda index: len(tokens[index]))
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            vectors[rows] = self._encode_tokens([tokens[row] for row in rows]).float().cpu()
            if on_done is not None:
                on_done(len(rows))
        return vectors

    def _encode_tokens(self, tokens: list[list[int]]) -> Tensor:
        """Token ids of one batch → vectors [B, width]; padding is masked out, so neighbours do not matter."""
        device = next(self.network.parameters()).device
        batch = self.tokenizer.pad({"input_ids": tokens}, return_tensors="pt", padding_side="right")
        ids, mask = batch["input_ids"].to(device), batch["attention_mask"].to(device)
        hidden = self.network(input_ids=ids, attention_mask=mask).last_hidden_state
        return pool(hidden, mask, self.pooling)


def load_text_encoder(
    name: str, pooling: TextPooling = "auto", max_words: int = 30, lowercase: bool = True
) -> TextEncoder:
    """Load a text encoder.

    Args:
        name: A preset, a hub id or a folder; see `pairstill.towers.weights`.
        pooling: "auto" takes the preset's; for others mean where sentence-transformers says so, else CLS.
        max_words: Captions are cut to this many words.
        lowercase: Whether captions are lower-cased first.

    Raises:
        PairstillError: The name is unknown or the weights cannot be had.
    """
    if pooling not in ("auto", "cls", "mean"):
        raise unknown("text pooling", pooling, ("auto", "cls", "mean"))
    if max_words < 1:
        raise PairstillError(f"max_words must be at least 1, not {max_words}.")
    source = resolve_text(name)
    ensure_torchvision()
    with _quiet():
        network, tokenizer = _random(source) if source.origin == "random" else _pretrained(source)
    chosen = _default_pooling(source) if pooling == "auto" else pooling
    return TextEncoder(network, tokenizer, name, chosen, max_words, lowercase)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' loading bars and reports off the screen; errors still raise."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _default_pooling(source: TextSource) -> Pooling:
    if source.preset is not None:
        return source.preset.pooling
    if source.origin != "folder":
        return "mean" if source.name.startswith("sentence-transformers/") else "cls"
    config = Path(source.name).expanduser() / "1_Pooling" / "config.json"
    return "mean" if config.is_file() and read_json(config).get("pooling_mode_mean_tokens") else "cls"


def _pretrained(source: TextSource) -> tuple[nn.Module, Any]:
    """Model and tokenizer from a folder, a package or the hub."""
    if source.origin == "folder":
        return _from_folder(str(Path(source.name).expanduser()))
    if source.origin == "package":
        return _from_folder(str(text_package_folder(source.name, cast(TextPreset, source.preset))))
    if source.origin == "npm":
        archive = cast(TextPreset, source.preset).npm
        assert archive is not None, "resolve_text has seen it"
        return _from_folder(str(npm_folder(archive, onnx_bert.convert, cache_folder())))
    hub_id = source.preset.hub_id if source.preset else source.name
    offline = not hub_reachable()
    try:
        return _load(hub_id, offline)
    except (OSError, ValueError) as error:
        if offline:
            raise no_network("text", source.name) from error
        raise PairstillError(f"text encoder '{source.name}' could not be loaded from the hub: {error}") from error


def _from_folder(folder: str) -> tuple[nn.Module, Any]:
    try:
        return _load(folder, offline=True)
    except (OSError, ValueError) as error:
        raise PairstillError(f"{folder} does not hold a text encoder that transformers can load: {error}") from error


def _load(name: str, offline: bool) -> tuple[nn.Module, Any]:
    """Model and tokenizer by transformers' own code: code that comes with weights is never run, nor asked about."""
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(name, local_files_only=offline, trust_remote_code=False)
    return model, AutoTokenizer.from_pretrained(name, local_files_only=offline, trust_remote_code=False)


def _random(source: TextSource) -> tuple[nn.Module, Any]:
    """Random weights drawn from the name, with the uncased WordPiece tokenizer of the minilm package."""
    import transformers

    assert source.preset is not None, "resolve_text has seen the preset"
    folder = text_package_folder("minilm", TEXT_PRESETS["minilm"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    config = getattr(transformers, source.preset.config)(**source.preset.sizes)
    with global_seed(0, source.name):
        return transformers.AutoModel.from_config(config), tokenizer
