"""Look at every image and caption of a dataset once, before anything expensive is built on them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pairstill.data.decoding import decode, map_chunks
from pairstill.data.findings import Findings, Spread
from pairstill.data.pair_dataset import ImageStore, Indices, PairDataset, is_unicode
from pairstill.data.sources.source_spec import OnBad
from pairstill.errors import PairstillError

SHOWN = 10
# Which split keeps an image that several have: scores must stay honest, training can spare an image.
KEEPS = ("test", "val", "train")
Progress = Callable[[int, int], None]


class Look(NamedTuple):
    """What one image is like; `problem` is empty when it is sound."""

    digest: bytes
    width: int
    height: int
    problem: str


class _Faults:
    """Everything that is wrong: what to say, and what to drop when bad rows are to be skipped."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.images: set[int] = set()
        self.captions: set[int] = set()


def check(
    dataset: PairDataset,
    workers: int = 0,
    on_bad: OnBad = "error",
    progress: Progress | None = None,
) -> tuple[PairDataset, Findings]:
    """Decode every image, read every caption, and say what was found.

    Args:
        dataset: What to look at.
        workers: Processes that decode; 0 decodes in this one.
        on_bad: `error` refuses a dataset with faults and lists them; `skip` drops what is faulty.
        progress: Called with the number of images done and their total.

    Returns:
        The dataset with `digests` set (and without what was dropped), and the findings.

    Raises:
        PairstillError: There are faults and `on_bad` is `error`, or nothing is left of a split.
    """
    _check_numbers(dataset)
    looks = _look_at_all(dataset.images, workers, progress)
    findings, faults = Findings(), _Faults()
    _find_unreadable(dataset, looks, findings, faults)
    _find_shared(dataset, looks, findings, faults)
    _find_empty_or_broken(dataset, findings, faults)
    _find_unlinked(dataset, findings, faults)
    if faults.messages and on_bad == "error":
        raise _refusal(dataset.name, faults.messages)
    digests = np.frombuffer(b"".join(look.digest for look in looks), np.uint8).reshape(-1, 32)
    checked = _without(replace(dataset, digests=digests), faults)
    findings.dropped_images = len(dataset.images) - len(checked.images)
    findings.dropped_captions = len(dataset.captions) - len(checked.captions)
    _describe(checked, [look for look in looks if not look.problem], findings)
    _refuse_empty_splits(checked)
    return checked, findings


def look_at(images: ImageStore, rows: Indices) -> list[Look]:
    """Read, hash and decode some images."""
    looks = []
    for row in map(int, rows):
        data = b""
        try:
            data = images.read(row)
            width, height = decode(data, images.name(row)).size
            looks.append(Look(hashlib.sha256(data).digest(), width, height, ""))
        except PairstillError as error:
            looks.append(Look(hashlib.sha256(data).digest(), 0, 0, str(error)))
    return looks


def _look_at_all(images: ImageStore, workers: int, progress: Progress | None) -> list[Look]:
    looks: list[Look] = []
    for part in map_chunks(look_at, images, np.arange(len(images)), workers):
        looks.extend(part)
        if progress is not None:
            progress(len(looks), len(images))
    return looks


def _check_numbers(dataset: PairDataset) -> None:
    """Links and splits must point at images and captions that exist."""
    limits = np.array([len(dataset.images), len(dataset.captions)])
    if dataset.links.size and (dataset.links.min() < 0 or (dataset.links >= limits).any()):
        raise PairstillError(f"{dataset.name}: a link points at an image or caption that does not exist.")
    for name, rows in dataset.splits.items():
        if rows.size and (rows.min() < 0 or rows.max() >= limits[0]):
            raise PairstillError(f"{dataset.name}: split '{name}' points at an image that does not exist.")


def _find_unreadable(dataset: PairDataset, looks: list[Look], findings: Findings, faults: _Faults) -> None:
    for row, look in enumerate(looks):
        if look.problem:
            findings.unreadable.append({"name": dataset.images.name(row), "reason": look.problem})
            faults.messages.append(look.problem)
            faults.images.add(row)


def _find_shared(dataset: PairDataset, looks: list[Look], findings: Findings, faults: _Faults) -> None:
    """Images that two splits share, by number or by content, and those that merely occur twice."""
    seen: dict[bytes, tuple[str, int]] = {}
    owner: dict[int, str] = {}
    for split in (*KEEPS, *(name for name in dataset.splits if name not in KEEPS)):
        for row in map(int, dataset.splits.get(split, ())):
            if owner.setdefault(row, split) != split:
                findings.in_two_splits += 1
                faults.messages.append(
                    f"{dataset.images.name(row)}: the image is in two splits, {owner[row]} and {split}."
                )
            elif not looks[row].problem:
                other_split, other = seen.setdefault(looks[row].digest, (split, row))
                findings.duplicate_images += other != row
                if other_split != split:
                    names = dataset.images.name(row), dataset.images.name(other)
                    findings.leaks.append({"split": split, "name": names[0], "same_as": names[1]})
                    faults.messages.append(
                        f"{names[0]}: leak: in {split}, and the same bytes in {other_split} as {names[1]}."
                    )
                    faults.images.add(row)


def _find_empty_or_broken(dataset: PairDataset, findings: Findings, faults: _Faults) -> None:
    pictures = {int(caption): int(picture) for picture, caption in dataset.links[::-1]}
    for row, caption in enumerate(dataset.captions):
        empty, broken = not caption.strip(), not is_unicode(caption)
        if empty or broken:
            of = f" of {dataset.images.name(pictures[row])}" if row in pictures else ""
            findings.empty_captions += empty
            findings.broken_captions += broken
            faults.messages.append(f"caption {row}{of} {'is empty' if empty else 'holds half a character'}.")
            faults.captions.add(row)


def _find_unlinked(dataset: PairDataset, findings: Findings, faults: _Faults) -> None:
    """Images without a caption that says something, and captions without an image."""
    sound = dataset.links[~np.isin(dataset.links[:, 1], list(faults.captions))]
    for row in np.setdiff1d(np.arange(len(dataset.images)), sound[:, 0]).tolist():
        findings.images_without_caption += 1
        faults.messages.append(f"{dataset.images.name(row)}: the image has no caption.")
        faults.images.add(row)
    for row in np.setdiff1d(np.arange(len(dataset.captions)), dataset.links[:, 1]).tolist():
        findings.captions_without_image += 1
        faults.messages.append(f"caption {row} ({dataset.captions[row][:60]!r}) has no image.")
        faults.captions.add(row)


def _refusal(name: str, messages: list[str]) -> PairstillError:
    listed = "".join(f"\n  {message}" for message in messages[:SHOWN])
    more = f"\n  and {len(messages) - SHOWN} more" if len(messages) > SHOWN else ""
    what = "1 problem" if len(messages) == 1 else f"{len(messages)} problems"
    return PairstillError(f"{name} has {what}:{listed}{more}\nMend them, or drop them with on_bad=skip.")


def _without(dataset: PairDataset, faults: _Faults) -> PairDataset:
    """Drop what is faulty, then the captions that lost their last image; each image keeps one split."""
    if not faults.messages:
        return dataset
    taken: set[int] = set()
    splits: dict[str, Indices] = {}
    for split in (*KEEPS, *(name for name in dataset.splits if name not in KEEPS)):
        if split in dataset.splits:
            rows = [row for row in dataset.splits[split].tolist() if row not in taken]
            splits[split] = np.array(rows, dtype=np.int64)
            taken.update(rows)
    images = np.setdiff1d(np.arange(len(dataset.images)), list(faults.images)).astype(np.int64)
    linked = dataset.links[np.isin(dataset.links[:, 0], images), 1]
    captions = np.setdiff1d(linked, list(faults.captions)).astype(np.int64)
    return replace(dataset, splits={name: splits[name] for name in dataset.splits}).select(images, captions)


def _describe(dataset: PairDataset, sound: list[Look], findings: Findings) -> None:
    """Counts and sizes of what is kept."""
    for name in dataset.splits:
        split = dataset.split(name)
        findings.images[name] = len(split.images)
        findings.captions[name] = len(split.captions)
        findings.links[name] = len(split.links)
    findings.captions_per_image = Spread.of(np.bincount(dataset.links[:, 0], minlength=len(dataset.images)))
    findings.images_per_caption = Spread.of(np.bincount(dataset.links[:, 1], minlength=len(dataset.captions)))
    findings.duplicate_captions = len(dataset.captions) - len(set(dataset.captions))
    if sound:
        by_area = sorted(sound, key=lambda look: (look.width * look.height, look.width))
        findings.smallest = (by_area[0].width, by_area[0].height)
        findings.largest = (by_area[-1].width, by_area[-1].height)


def _refuse_empty_splits(dataset: PairDataset) -> None:
    for name in ("train", "val", "test"):
        if len(dataset.splits.get(name, ())) == 0:
            raise PairstillError(
                f"{dataset.name}: the split '{name}' has no images. Give more data, another split column, "
                "or larger fractions."
            )
