"""Encoded images to pixels: safely, in order, and in several processes when asked."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from pairstill.data.pair_dataset import ImageStore, Indices
from pairstill.errors import PairstillError

Pixels = NDArray[np.uint8]
T = TypeVar("T")

MAX_PIXELS = 64_000_000
CHUNK = 64
UNGUARDED = (
    "Is there enough memory, and does the script start its work below `if __name__ == '__main__':`? "
    "Set workers to 0 to decode in one process."
)
# Only formats that hold one plain image: Pillow would start Ghostscript for an EPS file.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")


def decode(data: bytes, name: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """An upright RGB image; transparent parts become white.

    Args:
        data: The encoded image.
        name: What to call it in an error.
        max_pixels: The most pixels its header may announce; checked before anything is decoded.

    Raises:
        PairstillError: The image is empty, too large, cut short, or in no known format.
    """
    if not data:
        raise PairstillError(f"{name}: the image is empty (0 bytes). Replace the file or drop its row.")
    image = _open(data, name, max_pixels)
    try:
        image.load()
        return _rgb(_upright(image))
    except Exception as error:  # Pillow's plugins raise whatever a broken file makes them raise
        raise PairstillError(
            f"{name}: the image cannot be decoded ({error}). The file is truncated or damaged; "
            "fetch it again or drop its row."
        ) from error


def _open(data: bytes, name: str, max_pixels: int) -> Image.Image:
    """Read the header only, and refuse an image that announces too many pixels."""
    try:
        image = Image.open(io.BytesIO(data), formats=_formats())
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name, str(error).split(",")[0].rstrip("."), max_pixels) from error
    except Exception as error:
        raise PairstillError(
            f"{name}: not an image that can be read. Known formats: {', '.join(_formats())}."
        ) from error
    if image.width * image.height > max_pixels:
        raise _too_large(name, f"it announces {image.width} x {image.height} pixels", max_pixels)
    return image


def _too_large(name: str, what: str, max_pixels: int) -> PairstillError:
    return PairstillError(
        f"{name}: refused as a decompression bomb: {what}, and the limit is {max_pixels:,} pixels. "
        "Make the image smaller or drop its row."
    )


@cache
def _formats() -> tuple[str, ...]:
    """Those of `FORMATS` that this build of Pillow can read."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation; a broken EXIF block is no reason to lose a good image."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:
        return image


def _rgb(image: Image.Image) -> Image.Image:
    """To RGB, over white where the image is transparent."""
    if image.mode.startswith("I"):  # 16-bit grey, which Pillow would clip at 255 instead of scaling
        levels = np.asarray(image).astype(np.int64) >> 8
        image = Image.fromarray(np.clip(levels, 0, 255).astype(np.uint8))
    if image.mode in {"RGBA", "LA", "PA", "La", "RGBa"} or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def to_square(image: Image.Image, size: int) -> Pixels:
    """Scale the shorter side to `size` (bicubic) and keep the centre, shape [3, size, size].

    The centre is cut first and then scaled: the result is the same, and an image of 1 x 60,000,000 pixels
    does not grow on the way.
    """
    side = min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    box = (left, top, left + side, top + side)
    square = image.resize((size, size), Image.Resampling.BICUBIC, box=box)
    return np.ascontiguousarray(np.asarray(square, dtype=np.uint8).transpose(2, 0, 1))


def load_pixels(
    images: ImageStore,
    rows: Sequence[int] | Indices,
    size: int,
    workers: int = 0,
    on_done: Callable[[int], None] | None = None,
    *,
    batch: int = CHUNK,
) -> Iterator[Pixels]:
    """Decoded squares in the order of `rows`, as batches of shape [b, 3, size, size].

    Args:
        images: Where the images come from.
        rows: Which images.
        size: Side of the squares in pixels.
        workers: Processes that decode; 0 decodes in this one.
        on_done: Called after each batch with the number of images done so far.
        batch: Images in a batch; the last may have fewer.
    """
    done = 0
    for pixels in map_chunks(_Squares(size), images, rows, workers, batch):
        done += len(pixels)
        if on_done is not None:
            on_done(done)
        yield pixels


class _Squares:
    """The task of `load_pixels`; a class, so that it can be sent to another process."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, images: ImageStore, rows: Indices) -> Pixels:
        squares = [to_square(decode(images.read(int(row)), images.name(int(row))), self.size) for row in rows]
        return np.stack(squares)


def map_chunks(
    task: Callable[[ImageStore, Indices], T],
    images: ImageStore,
    rows: Sequence[int] | Indices,
    workers: int = 0,
    chunk: int = CHUNK,
) -> Iterator[T]:
    """Run `task(images, some_rows)` over all rows, chunk by chunk; results come in order.

    With `workers`, chunks run in that many fresh processes (spawned: forking a process that runs torch's
    threads can hang), and at most two chunks a worker are under way, so memory stays bounded.
    """
    wanted = np.asarray(rows, dtype=np.int64)
    chunks = [wanted[start : start + chunk] for start in range(0, len(wanted), chunk)]
    if workers <= 0 or len(chunks) < 2:
        yield from (task(images, part) for part in chunks)
        return
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # A worker is importing the script that started it, and the script would start workers in turn.
        raise PairstillError(UNGUARDED)
    count = min(workers, len(chunks))
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_start_worker, initargs=(images,))
    try:
        yield from _in_order(pool, task, chunks, 2 * count)
    except BrokenProcessPool as error:
        raise PairstillError(f"a worker process ended before its work was done. {UNGUARDED}") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _in_order(
    pool: ProcessPoolExecutor, task: Callable[[ImageStore, Indices], T], chunks: list[Indices], ahead: int
) -> Iterator[T]:
    """Keep `ahead` chunks under way and yield results in the order of the chunks."""
    waiting: deque[Future[T]] = deque()
    for part in chunks:
        waiting.append(pool.submit(_run, task, part))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


_worker_images: ImageStore | None = None


def _start_worker(images: ImageStore) -> None:
    """Keep the store for this worker's chunks; end with the parent, and leave Ctrl-C to it."""
    global _worker_images  # noqa: PLW0603 - one per worker process, sent once instead of with every chunk
    _worker_images = images
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed cannot stop its workers, so they watch it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        with contextlib.suppress(OSError):
            parent.join()
        os._exit(1)


def _run(task: Callable[[ImageStore, Indices], T], rows: Indices) -> T:
    assert _worker_images is not None
    return task(_worker_images, rows)
