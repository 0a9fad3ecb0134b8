from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pairstill.errors import PairstillError
from pairstill.towers.text_encoder import load_text_encoder, pool
from tests.conftest import write_tiny_bert

CAPTIONS = [
    "A dog",
    "Two children are playing football in the park near a large old tree",
    "a",
    "red bicycle by a wall",
]


@pytest.fixture(scope="module")
def minilm():
    return load_text_encoder("minilm")


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Path:
    return write_tiny_bert(tmp_path, ["a", "dog", "red", "runs"])


def test_a_caption_has_the_same_vector_in_any_company(minilm) -> None:
    alone = torch.cat([minilm.encode([caption]) for caption in CAPTIONS])
    together = minilm.encode(CAPTIONS)
    assert together.shape == (4, 384) and together.dtype == torch.float32
    assert not together.requires_grad
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(minilm.encode(CAPTIONS[::-1], batch_size=3), alone.flip(0), atol=1e-5, rtol=1e-4)


def test_pretrained_vectors_know_what_is_alike(minilm) -> None:
    dog, puppy, stocks = torch.nn.functional.normalize(
        minilm.encode(["a dog on grass", "a puppy in the garden", "stock prices fell"]), dim=-1
    )
    assert dog @ puppy > dog @ stocks + 0.2


def test_vectors_equal_transformers_own(minilm) -> None:
    batch = minilm.tokenizer([CAPTIONS[1].lower()], return_tensors="pt")
    with torch.no_grad():
        hidden = minilm.network(**batch).last_hidden_state
    torch.testing.assert_close(minilm.encode([CAPTIONS[1]])[0], hidden[0].mean(0), atol=1e-5, rtol=1e-4)


def test_captions_are_lowered_and_cut(minilm) -> None:
    words = "One two three four five"
    cut = load_text_encoder("minilm", max_words=3)
    torch.testing.assert_close(cut.encode([words]), cut.encode(["one two  THREE"]))
    assert cut.fingerprint != minilm.fingerprint
    assert minilm.encode(["word " * 30 + "tail"]).allclose(minilm.encode(["word " * 30]))


def test_progress_counts_every_caption_and_no_captions_give_no_rows(minilm) -> None:
    done: list[int] = []
    minilm.encode(CAPTIONS, batch_size=3, on_done=done.append)
    assert done == [3, 1]
    assert minilm.encode([]).shape == (0, 384)


def test_very_long_words_are_truncated_not_refused(minilm) -> None:
    assert minilm.encode(["x" * 50_000 + " antidisestablishmentarianism-" * 200]).isfinite().all()


def test_a_local_folder_loads_with_cls_pooling(tiny_folder: Path) -> None:
    encoder = load_text_encoder(str(tiny_folder))
    assert (encoder.width, encoder.pooling) == (16, "cls")
    mean = load_text_encoder(str(tiny_folder), pooling="mean")
    assert not encoder.encode(["red dog"]).allclose(mean.encode(["red dog"]))
    assert encoder.fingerprint != mean.fingerprint
    assert encoder.encode(["red dog " * 200]).isfinite().all()


def test_a_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PairstillError, match="does not hold a text encoder"):
        load_text_encoder(str(tmp_path))


def test_random_bert_is_the_same_every_time_and_frozen() -> None:
    first, second = (load_text_encoder("distilbert@random") for _ in range(2))
    assert first.width == 768 and first.pooling == "cls"
    assert first.fingerprint == second.fingerprint
    assert first.train().network.training is False
    assert not any(parameter.requires_grad for parameter in first.parameters())
    torch.testing.assert_close(first.encode(CAPTIONS)[:1], first.encode(CAPTIONS[:1]), atol=1e-5, rtol=1e-4)


def test_random_bert_has_berts_width() -> None:
    assert load_text_encoder("bert@random").encode(["a dog"]).shape == (1, 768)


def test_pooling_ignores_padding() -> None:
    hidden = torch.arange(12.0).view(1, 3, 4)
    mask = torch.tensor([[1, 1, 0]])
    torch.testing.assert_close(pool(hidden, mask, "mean"), hidden[:, :2].mean(1))
    torch.testing.assert_close(pool(hidden, mask, "cls"), hidden[:, 0])
