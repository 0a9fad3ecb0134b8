"""Files of every kind that we write, changed at random: each is refused with a clear error, or read as if unchanged."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from pairstill import api
from pairstill.data.sources import SourceSpec, open_source
from pairstill.errors import PairstillError
from pairstill.experts.bank import Bank
from pairstill.features.feature_cache import cached_matrix
from pairstill.features.prepared_folder import open_prepared
from pairstill.runtime.files import digest_of_tensors, read_manifest, write_manifest
from pairstill.runtime.run_folder import Run
from pairstill.sets.distilled_set import load
from pairstill.sets.exports import export
from pairstill.sets.initial_record import read_initial_pairs
from pairstill.sets.saved_student import load_student
from pairstill.studies.study import read_study
from pairstill.training.training_recipe import Recipe

LONGEST = 10.0
"""Seconds within which a damaged file must be refused."""


class Kind(NamedTuple):
    """A file, what reads it, how often it is changed, and whether what is read must be what was written."""

    file: Path
    read: Callable[[], Any]
    times: int
    exact: bool = True


def changed(data: bytes, random: np.random.Generator) -> bytes:
    """A file with some accident in it."""
    if not data:
        return b"\0"
    at, length = int(random.integers(len(data))), int(random.integers(1, 40))
    before, here, after = data[:at], data[at : at + length], data[at + length :]
    digits = [place for place, byte in enumerate(data[:100_000]) if 48 <= byte <= 57] or [at]
    place = int(random.choice(digits))
    accidents = [
        before + bytes([here[0] ^ 1 << int(random.integers(8))]) + here[1:] + after,
        before,
        before + after,
        before + random.bytes(length) + here + after,
        before + bytes(len(here)) + after,
        before + here + here + after,
        data[:place] + str((data[place] + 3) % 10).encode() + data[place + 1 :],
        random.bytes(length),
    ]
    return accidents[int(random.integers(len(accidents)))]


def tensors_of(made):
    return digest_of_tensors({"images": made.images, "texts": made.texts}), [list(near) for near in made.captions]


@pytest.fixture(scope="module")
def kinds(heads_data, heads_bank, shapes, tmp_path_factory):
    root = tmp_path_factory.mktemp("fuzz")
    recipe = Recipe(epochs=1, batch_size=16)
    settings = {"iterations": 2, "check_every": 2, "inner_epochs": 2, "student_width": 8, "real_batch": 8, "views": 0}
    from pairstill.methods.through_training.rehearsal import Settings

    made = root / "set"
    api.distill(heads_data, made, "rehearsal", 4, settings=Settings(**settings), student=recipe)
    api.train_student(made, heads_data, root / "student", student=recipe)
    bank, data, features = root / "bank", root / "data", root / "features"
    shutil.copytree(heads_bank.folder, bank)
    shutil.copytree(heads_data.folder, data)
    opened = Bank.open(bank)
    opened.keep_unfinished(7, 2, opened.parameters(0), {})
    cached_matrix(features / "x.npy", (50, 3), "float32", lambda start: iter([rows(start)]), "x")
    stop_half_way(features)
    for form in ("hf", "webdataset", "folder"):
        export(made, root / form, form)
    write_manifest(root / "row.json", {"mean": 12.5, "method": "mdm", "pairs": 100})
    study = Path("recipes/compare/main.yaml").read_text()
    (root / "study.yaml").write_text(study)
    shutil.copytree(shapes, root / "shapes")
    config = read_manifest(made / "run/run.json")["config"]
    return every_kind(root, config)


def rows(start):
    return np.arange(150, dtype=np.float32).reshape(50, 3)[start:]


def stop_half_way(folder):
    def halves(start):
        yield rows(start)[:20]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_matrix(folder / "y.npy", (50, 3), "float32", halves, "y")
    shutil.copy(folder / "y.partial.npy", folder / "kept.npy")
    shutil.copy(folder / "y.partial.json", folder / "kept.json")


def every_kind(root, config):
    made, bank, data, features = (root / name for name in ("set", "bank", "data", "features"))

    def experts():
        opened = Bank.open(bank)
        return digest_of_tensors(opened.anchor), digest_of_tensors(opened.parameters(1))

    def matrix():
        return cached_matrix(features / "x.npy", (50, 3), "float32", lambda start: iter([rows(start)]), "x").tobytes()

    def partial():
        for kept, name in (("kept.npy", "y.partial.npy"), ("kept.json", "y.partial.json")):
            shutil.copy(features / kept, features / name)
        (features / "y.npy").unlink(missing_ok=True)
        return cached_matrix(features / "y.npy", (50, 3), "float32", lambda start: iter([rows(start)]), "y").tobytes()

    def run():
        tensors, state = Run(made / "run", config, resume=True).load_checkpoint()
        return digest_of_tensors(tensors), state["done"]

    def dataset():
        opened = open_prepared(data)
        return opened.dataset.fingerprint, opened.towers

    def first():
        found = read_initial_pairs(made / "run")
        return digest_of_tensors({"pictures": found.pictures, "texts": found.texts}), found.captions

    def student():
        return digest_of_tensors(dict(load_student(root / "student").model.named_parameters()))

    sets = [Kind(made / name, lambda: tensors_of(load(made)), 120) for name in ("distilled.json", "images.safetensors")]
    sets += [Kind(made / name, lambda: tensors_of(load(made)), 80) for name in ("texts.safetensors", "captions.jsonl")]
    epoch = "expert-000/epoch-002.safetensors"
    banks = [Kind(bank / name, experts, 120) for name in ("bank.json", "anchor.safetensors", epoch)]
    exports = [
        Kind(next((root / form).rglob(pattern)), lambda form=form: tensors_of(load(root / form)), 60)
        for form, pattern in (("hf", "*.parquet"), ("webdataset", "*.tar"), ("folder", "*.png"), ("hf", "export.json"))
    ]
    return [
        *sets,
        *banks,
        Kind(bank / "gram.safetensors", lambda: Bank.open(bank).gram.sum().item(), 120),
        Kind(
            bank / "expert-007/unfinished.safetensors", lambda: digest_of_tensors(Bank.open(bank).unfinished(7)[1]), 120
        ),
        *(Kind(made / "run" / name, run, 100) for name in ("checkpoint.safetensors", "run.json", "events.jsonl")),
        Kind(made / "run/initial.safetensors", first, 80),
        *(Kind(data / name, dataset, 80) for name in ("prepared.json", "pairs.safetensors", "captions.jsonl")),
        *(Kind(features / name, matrix, 60) for name in ("x.npy", "x.json")),
        *(Kind(features / name, partial, 60) for name in ("kept.npy", "kept.json")),
        *(Kind(root / "student" / name, student, 60) for name in ("student.json", "student.safetensors")),
        *exports,
        Kind(root / "row.json", lambda: read_manifest(root / "row.json"), 100),
        Kind(root / "study.yaml", lambda: read_study(root / "study.yaml"), 100, exact=False),
        Kind(root / "shapes/metadata.jsonl", lambda: open_source(SourceSpec(str(root / "shapes"))), 60, exact=False),
    ]


@pytest.mark.slow
@pytest.mark.crash
def test_no_damaged_file_is_taken_for_a_whole_one(kinds):
    random, refused, unchanged = np.random.default_rng(0), 0, 0
    for kind in kinds:
        data, expected = kind.file.read_bytes(), kind.read()
        for number in range(kind.times):
            mutant = changed(data, random)
            kind.file.write_bytes(mutant)
            begin = time.monotonic()
            try:
                found = kind.read()
                unchanged += 1
                assert not kind.exact or found == expected, f"{kind.file.name}, change {number}: another result"
            except PairstillError as error:
                refused += 1
                assert len(str(error)) > 20
            finally:
                assert time.monotonic() - begin < LONGEST, kind.file.name
            kind.file.write_bytes(data)
    assert refused + unchanged >= 2000
    assert refused > unchanged
