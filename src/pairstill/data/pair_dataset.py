"""PairDataset: images, captions, which caption belongs to which image, and the splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pairstill.errors import PairstillError

Indices = NDArray[np.int64]


def is_unicode(text: str) -> bool:
    """Whether a text can be written down: not with half a character in it, nor as a name of bytes that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@runtime_checkable
class ImageStore(Protocol):
    """Encoded images by number. A store is small and picklable: worker processes get a copy."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """What a person calls this image: its file, or its shard and row."""
        ...

    def read(self, index: int) -> bytes:
        """The encoded image (JPEG, PNG, WebP, ...)."""
        ...

    def signature(self) -> str:
        """A digest of names, sizes and times that is cheap to take; it changes when an image may have."""
        ...


@dataclass(frozen=True)
class ChosenImages:
    """Some of the images of another store, renumbered from 0."""

    store: ImageStore
    rows: Indices

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        """The name in the store beneath."""
        return self.store.name(int(self.rows[index]))

    def read(self, index: int) -> bytes:
        """The image from the store beneath."""
        return self.store.read(int(self.rows[index]))

    def signature(self) -> str:
        """The signature of the store beneath and of the choice."""
        rows = np.ascontiguousarray(self.rows, dtype="<i8").tobytes()
        return hashlib.sha256(self.store.signature().encode() + rows).hexdigest()[:16]


@dataclass(frozen=True)
class Split:
    """One split of a dataset, renumbered from 0.

    Attributes:
        images: Rows of the dataset's images, shape [I].
        captions: Rows of the dataset's captions, shape [C]: those linked to the images above.
        links: Which caption belongs to which image, as local rows, shape [P, 2] (image, caption).
    """

    images: Indices
    captions: Indices
    links: Indices


@dataclass(frozen=True)
class PairDataset:
    """Images and captions with their links.

    An image may have several captions (Flickr8k) and a caption several images (emoji): `links` holds every
    pair that belongs together, shape [P, 2] (image, caption). A training pair is one link.
    `digests` [I, 32] holds the SHA-256 of every image once `pairstill.data.checking.check` has read them all.
    """

    name: str
    images: ImageStore
    captions: Sequence[str]
    links: Indices
    splits: Mapping[str, Indices]
    license: str = "unknown"
    digests: NDArray[np.uint8] | None = field(default=None, repr=False, compare=False)

    def split(self, name: str) -> Split:
        """The images of one split with all their captions."""
        if name not in self.splits:
            raise PairstillError(f"{self.name} has no split '{name}'. It has: {', '.join(sorted(self.splits))}.")
        images = np.sort(self.splits[name])
        chosen = self.links[np.isin(self.links[:, 0], images)]
        captions = np.unique(chosen[:, 1])
        local = np.stack([np.searchsorted(images, chosen[:, 0]), np.searchsorted(captions, chosen[:, 1])], axis=1)
        return Split(images, captions, local)

    def select(self, images: Indices, captions: Indices) -> PairDataset:
        """Only these images and captions, in their old order, with the links between them."""
        images, captions = np.unique(images), np.unique(captions)
        kept = np.isin(self.links[:, 0], images) & np.isin(self.links[:, 1], captions)
        links = self.links[kept]
        return replace(
            self,
            images=ChosenImages(self.images, images),
            captions=[self.captions[row] for row in captions],
            links=np.stack([np.searchsorted(images, links[:, 0]), np.searchsorted(captions, links[:, 1])], axis=1),
            splits={name: np.searchsorted(images, rows[np.isin(rows, images)]) for name, rows in self.splits.items()},
            digests=None if self.digests is None else self.digests[images],
        )

    @cached_property
    def fingerprint(self) -> str:
        """A digest of every byte that matters: images, captions, links and splits.

        Reads all images unless `digests` is there.
        """
        digest = hashlib.sha256()
        if self.digests is not None:
            digest.update(np.ascontiguousarray(self.digests).data)
        else:
            for index in range(len(self.images)):
                digest.update(hashlib.sha256(self.images.read(index)).digest())
        for part in self._annotations():
            digest.update(part)
        return digest.hexdigest()[:16]

    @cached_property
    def annotations(self) -> str:
        """A digest of captions, links and splits, whatever the images."""
        digest = hashlib.sha256()
        for part in self._annotations():
            digest.update(part)
        return digest.hexdigest()[:16]

    def _annotations(self) -> Iterator[bytes]:
        for caption in self.captions:
            yield hashlib.sha256(caption.encode("utf-8", "surrogatepass")).digest()
        yield np.ascontiguousarray(self.links, dtype="<i8").tobytes()
        for name in sorted(self.splits):
            yield name.encode() + np.sort(self.splits[name]).astype("<i8").tobytes()
