import json

import pytest
import torch

import pairstill
from pairstill.errors import PairstillError
from pairstill.sets import distilled_set
from pairstill.sets.distilled_set import DistilledSet, load, nearest_captions

INFO = {
    "method": "mdm",
    "normalisation": {"mean": [0.5] * 3, "std": [0.5] * 3},
    "towers": {"text": "minilm", "image": "efficientnet_lite0"},
    "dataset": {"name": "shapes", "license": "MIT"},
}


def example(similarity=None):
    random = torch.Generator().manual_seed(0)
    images = torch.randn(5, 3, 8, 8, generator=random)
    return DistilledSet(
        images, torch.randn(5, 4, generator=random), [[f"caption {i}"] for i in range(5)], INFO, similarity
    )


def test_a_saved_set_loads_as_it_was(tmp_path):
    example(similarity=torch.eye(5)).save(tmp_path)
    back = pairstill.load(tmp_path)
    assert torch.equal(back.images, example().images)
    assert torch.equal(back.texts, example().texts)
    assert torch.equal(back.similarity, torch.eye(5))
    assert back.captions == [["caption 0"], ["caption 1"], ["caption 2"], ["caption 3"], ["caption 4"]]
    assert back.info["method"] == "mdm"
    assert "5 distilled pairs of shapes" in (tmp_path / "README.md").read_text()


def test_any_caption_survives(tmp_path):
    odd = 'line\u2028separator, next\x85line, "quotes", \n newline, 漢字'
    DistilledSet(torch.zeros(1, 3, 2, 2), torch.zeros(1, 2), [[odd]], INFO).save(tmp_path)
    assert load(tmp_path).captions == [[odd]]


def test_it_is_a_torch_dataset(tmp_path):
    batches = list(torch.utils.data.DataLoader(example(), batch_size=2))
    assert [tuple(images.shape) for images, _ in batches] == [(2, 3, 8, 8), (2, 3, 8, 8), (1, 3, 8, 8)]
    assert batches[0][1].shape == (2, 4)


def test_the_same_set_saves_to_the_same_bytes(tmp_path):
    example().save(tmp_path / "a")
    example().save(tmp_path / "b")
    for name in ("images.safetensors", "texts.safetensors", "captions.jsonl", "distilled.json", "README.md"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("name", ["images.safetensors", "texts.safetensors", "captions.jsonl", "README.md"])
def test_changed_bytes_are_refused(tmp_path, name):
    example().save(tmp_path)
    data = bytearray((tmp_path / name).read_bytes())
    data[-2] ^= 1
    (tmp_path / name).write_bytes(data)
    with pytest.raises(PairstillError, match=f"{name} was changed after the set was made"):
        load(tmp_path)


def change_manifest(folder, **changes):
    path = folder / "distilled.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_changed_manifest_is_refused(tmp_path):
    example().save(tmp_path)
    change_manifest(tmp_path, info={**INFO, "method": "better"})
    with pytest.raises(PairstillError, match=r"distilled.json was changed"):
        load(tmp_path)


def test_a_newer_format_is_refused(tmp_path):
    example().save(tmp_path)
    change_manifest(tmp_path, format=99)
    with pytest.raises(PairstillError, match=r"has format 99, and this pairstill reads up to 1. Upgrade"):
        load(tmp_path)


def test_missing_files_and_folders_are_said(tmp_path):
    with pytest.raises(PairstillError, match="is not a distilled set"):
        load(tmp_path)
    example().save(tmp_path)
    (tmp_path / "texts.safetensors").unlink()
    with pytest.raises(PairstillError, match=r"texts.safetensors does not exist"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": "1"}', "null", '{"format": 1}'])
def test_a_broken_manifest_is_refused(tmp_path, text):
    example().save(tmp_path)
    (tmp_path / "distilled.json").write_text(text)
    with pytest.raises(PairstillError, match=r"distilled.json"):
        load(tmp_path)


def test_a_set_that_is_not_finite_or_not_paired_is_refused():
    images, texts = torch.zeros(2, 3, 4, 4), torch.zeros(2, 4)
    with pytest.raises(PairstillError, match="finite"):
        DistilledSet(images / 0, texts, [["a"], ["b"]])
    with pytest.raises(PairstillError, match="as many texts"):
        DistilledSet(images, texts[:1], [["a"], ["b"]])
    with pytest.raises(PairstillError, match="needs images"):
        DistilledSet(images[0], texts, [["a"], ["b"]])


def test_pictures_are_denormalised_and_clipped():
    pairs = DistilledSet(torch.full((1, 3, 2, 2), 4.0), torch.zeros(1, 2), [["a"]], INFO)
    assert pairs.pictures().max() == 1.0
    half = DistilledSet(torch.zeros(1, 3, 2, 2), torch.zeros(1, 2), [["a"]], INFO)
    assert half.pictures().unique().item() == 0.5


def test_nearest_captions_are_by_cosine_and_different():
    real = torch.tensor([[10.0, 0.0], [0.0, 1.0], [0.0, 3.0], [-1.0, 0.0]])
    names = ["right", "up", "up", "left"]
    assert nearest_captions(torch.tensor([[0.1, 5.0]]), real, names, 2) == [["up", "right"]]


def test_a_full_disk_leaves_no_half_written_set(tmp_path, monkeypatch):
    import errno

    from pairstill.runtime import files

    example().save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(PairstillError, match=r"could not write .*images.safetensors: No space left on device"):
        example().save(tmp_path)
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert left == {name: data for name, data in before.items() if name != "distilled.json"}


def test_nearest_captions_in_blocks_are_those_of_all_scores(monkeypatch):
    random = torch.Generator().manual_seed(0)
    texts, real = torch.randn(9, 5, generator=random), torch.randn(200, 5, generator=random)
    real[100:110] = real[:10]  # some captions are there twice
    names = [f"caption {row % 100 if 100 <= row < 110 else row}" for row in range(200)]
    slow = []
    for text in texts:
        order = torch.cosine_similarity(text[None], real).argsort(descending=True, stable=True).tolist()
        slow.append(list(dict.fromkeys(names[row] for row in order))[:3])
    for at_once in (65536, 200, 7, 1):
        monkeypatch.setattr(distilled_set, "CAPTIONS_AT_ONCE", at_once)
        assert nearest_captions(texts, real, names) == slow
