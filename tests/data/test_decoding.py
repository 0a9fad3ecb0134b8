from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from pairstill.data.decoding import decode, load_pixels, map_chunks, to_square
from pairstill.data.sources.image_files import FileImages
from pairstill.errors import PairstillError
from tests.data.conftest import noise, store


def encode(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header announces a huge image."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_decodes_the_usual_formats_as_rgb(kind: str) -> None:
    image = decode(encode(Image.new("RGB", (6, 4), (200, 30, 30)), kind), "x")
    assert image.mode == "RGB" and image.size == (6, 4)
    assert np.abs(np.asarray(image).astype(int) - (200, 30, 30)).max() < 12


def test_applies_exif_orientation() -> None:
    image = Image.new("RGB", (8, 4))
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode(encode(image, "JPEG", exif=exif), "x").size == (4, 8)


def test_transparent_becomes_white() -> None:
    clear = Image.new("RGBA", (2, 2), (10, 20, 30, 0))
    assert decode(encode(clear), "x").getpixel((0, 0)) == (255, 255, 255)
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([0, 0, 0, 9, 9, 9])
    assert decode(encode(palette, transparency=1), "x").getpixel((0, 0)) == (255, 255, 255)
    assert decode(encode(palette), "x").getpixel((0, 0)) == (9, 9, 9)


def test_sixteen_bit_grey_is_scaled_not_clipped() -> None:
    grey = Image.fromarray(np.full((2, 2), 0x8000, dtype=np.uint16))
    assert decode(encode(grey), "x").getpixel((0, 0)) == (128, 128, 128)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"not an image", "not an image that can be read"),
        (encode(noise(64, 64), "JPEG")[:-600], "truncated"),
        (encode(noise(64, 64), "PNG")[:2000], "truncated"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image that can be read"),
        (bomb(9_000, 9_000), "decompression bomb: it announces 9000 x 9000 pixels"),
        (bomb(60_000, 60_000), "decompression bomb"),
    ],
)
def test_bad_pictures_are_refused_by_name(data: bytes, message: str) -> None:
    with pytest.raises(PairstillError, match=message) as caught:
        decode(data, "cats/7.jpg, row 3")
    assert "cats/7.jpg, row 3" in str(caught.value)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


def test_max_pixels_can_be_set() -> None:
    data = encode(noise(10, 10))
    assert decode(data, "x", max_pixels=100).size == (10, 10)
    with pytest.raises(PairstillError, match="limit is 99 pixels"):
        decode(data, "x", max_pixels=99)


@pytest.mark.parametrize("shape", [(60, 40), (40, 60), (41, 41)])
def test_to_square_is_resize_then_centre_crop(shape: tuple[int, int]) -> None:
    image, size = noise(*shape).resize((shape[0] * 4, shape[1] * 4), Image.Resampling.BICUBIC), 32
    scale = size / min(image.size)
    wide = (round(image.width * scale), round(image.height * scale))
    resized = image.resize(wide, Image.Resampling.BICUBIC)
    left, top = (wide[0] - size) // 2, (wide[1] - size) // 2
    expected = np.asarray(resized.crop((left, top, left + size, top + size))).transpose(2, 0, 1)
    result = to_square(image, size)
    assert result.shape == (3, size, size) and result.dtype == np.uint8
    inner = np.abs(result.astype(int) - expected.astype(int))[:, 2:-2, 2:-2]
    assert inner.max() <= 3


def test_to_square_of_a_line_stays_small() -> None:
    assert to_square(Image.new("RGB", (1_000_000, 1), "red"), 8).shape == (3, 8, 8)


@pytest.mark.parametrize("workers", [0, 2])
def test_load_pixels_keeps_order(tmp_path: Path, workers: int) -> None:
    images = store(tmp_path, 23)
    rows, done = [5, 3, 22, *range(20)], []
    batches = list(load_pixels(images, rows, 8, workers, done.append, batch=4))
    assert [len(batch) for batch in batches] == [4, 4, 4, 4, 4, 3] and done[-1] == 23
    for row, pixels in zip(rows, np.concatenate(batches), strict=True):
        assert np.array_equal(pixels, to_square(decode(images.read(row), ""), 8))


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_of_workers_reach_the_caller(tmp_path: Path, workers: int) -> None:
    images = store(tmp_path, 10)
    (tmp_path / "7.png").write_bytes(b"broken")
    with pytest.raises(PairstillError, match=r"7\.png: not an image"):
        list(load_pixels(images, range(10), 8, workers, batch=2))


def die(images: FileImages, rows: np.ndarray) -> None:
    import os

    os._exit(3)


@pytest.mark.crash
def test_a_dead_worker_is_an_error_for_the_person(tmp_path: Path) -> None:
    with pytest.raises(PairstillError, match="Set workers to 0"):
        list(map_chunks(die, store(tmp_path, 4), range(4), workers=1, chunk=2))


def test_a_script_without_main_guard_ends_with_an_error(tmp_path: Path) -> None:
    for row in range(4):
        noise(8, 8, row).save(tmp_path / f"{row}.png")
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from pairstill.data.decoding import load_pixels\n"
        "from pairstill.data.sources.image_files import FileImages\n"
        "names = [f'{row}.png' for row in range(4)]\n"
        "images = FileImages(Path(__file__).parent, names, names)\n"
        "list(load_pixels(images, range(4), 8, workers=2, batch=1))\n"
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=50)
    assert run.returncode == 1 and "a worker process ended before its work was done" in run.stderr


def test_importing_pictures_and_sources_does_not_import_torch_or_datasets() -> None:
    code = (
        "import sys, pairstill.data.decoding, pairstill.data.sources, pairstill.data.sources.arrow_images; "
        "sys.exit('torch' in sys.modules or 'datasets' in sys.modules or 'pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
