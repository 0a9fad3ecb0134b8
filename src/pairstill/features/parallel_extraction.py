"""Features in parts: each part is a task of a launcher, so that several processes or machines make one matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from pairstill.features.feature_cache import Extraction, Matrix, image_features, pixel_bytes, text_features
from pairstill.features.prepared_folder import PreparedDataset
from pairstill.runtime.files import locked
from pairstill.runtime.launchers import InProcess, Launcher, Task, in_process_if_one
from pairstill.runtime.progress import progress
from pairstill.towers.image_encoder import load_image_encoder
from pairstill.towers.text_encoder import load_text_encoder
from pairstill.towers.two_tower import Towers

PART_ROWS = 8192
"""A multiple of what is encoded at once, so that the numbers are those of one process to the last bit."""

Kind = Literal["texts", "images", "pixels"]


def extract(data: PreparedDataset, towers: Towers, workers: int, device: str, launcher: Launcher = InProcess()) -> None:  # noqa: B008
    """Compute whatever later stages read of a dataset through these towers, so that they start at once."""
    kinds: tuple[Kind, ...] = ("texts", "images", "pixels") if towers.train == "full" else ("texts", "images")
    for kind in kinds:
        whole = _extraction(kind, data, towers, workers, device)
        if isinstance(in_process_if_one(launcher), InProcess):
            whole.matrix()
            continue
        with locked(whole.path.with_suffix(".parts.lock")):  # another command may be at the same parts
            if not whole.is_there():
                _in_parts(whole, kind, data, towers, workers, device, launcher)


def _extraction(kind: Kind, data: PreparedDataset, towers: Towers, workers: int, device: str) -> Extraction:
    folder = data.folder / "features"
    if kind == "texts":
        return text_features(folder, data.dataset, load_text_encoder(towers.text, towers.text_pooling).to(device))
    if kind == "pixels":
        return pixel_bytes(folder, data.dataset, towers.image_size, workers)
    encoder = load_image_encoder(towers.image, towers.image_output)
    return image_features(folder, data.dataset, encoder, towers.image_size, workers, device)


def _in_parts(
    whole: Extraction, kind: Kind, data: PreparedDataset, towers: Towers, workers: int, device: str, launcher: Launcher
) -> None:
    """Have the parts made wherever the launcher works, and join them here."""
    count = whole.shape[0]
    bounds = [(begin, min(begin + PART_ROWS, count)) for begin in range(0, count, PART_ROWS)]
    tasks = [Task(f"{whole.label}, rows {b[0]} on", _part, (kind, data, towers, workers, device, *b)) for b in bounds]
    with progress(f"{whole.label}, parts", len(tasks)) as advance:
        for outcome in launcher.run(tasks):
            outcome.result("Finished parts are kept.")
            advance(1)
    parts = [whole.part(*b) for b in bounds]
    replace(whole, compute=partial(_joined, parts), label=f"{whole.label}, joined").matrix()
    for part in parts:
        part.forget()


def _part(kind: Kind, data: PreparedDataset, towers: Towers, workers: int, device: str, begin: int, end: int) -> None:
    _extraction(kind, data, towers, workers, device).part(begin, end).matrix()


def _joined(parts: Sequence[Extraction], begin: int, end: int) -> Iterator[Matrix]:
    """Rows of the whole matrix, read from its parts."""
    first = 0
    for part in parts:
        last = first + part.shape[0]
        if last > begin and first < end:
            yield part.matrix()[max(begin - first, 0) : end - first]
        first = last
