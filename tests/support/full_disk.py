"""Every stage on a disk that is full, then again with room."""

import contextlib
import ctypes
import io
import os
from pathlib import Path

from pairstill.cli import main as cli
from pairstill.sets.distilled_set import load

MOST = 16 * 2**20
NEW_MOUNTS, PRIVATE = 0x20000, 0x4000 | 1 << 18


def mount(disk):
    """A small disk that only this process and its children see, and that is gone with them."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = f"size={MOST}".encode()
    if libc.unshare(NEW_MOUNTS) or libc.mount(b"none", b"/", None, PRIVATE, None):
        raise OSError(ctypes.get_errno(), "no mounts of one's own")
    if libc.mount(b"tmpfs", os.fsencode(disk), b"tmpfs", 0, size):
        raise OSError(ctypes.get_errno(), "no disk in memory")


def run(words):
    """Exit code and output of a command, in this process."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        code = cli.main(words)
    return code, text.getvalue()


def fill(disk, room):
    """Leave so many bytes."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    with ballast.open("rb+") as file:
        file.truncate(max(0, ballast.stat().st_size - room))
    return ballast


def main(disk, lines):
    """Run each stage's command, with nothing left on the disk, with some room, and with all of it.

    Returns what each made: the hashes of its files.
    """
    from tests.support.killing import made

    disk, found = Path(disk), {}
    mount(disk)
    for stage, (words, room) in lines.items():
        for left in (0, room):
            ballast = fill(disk, left)
            code, output = run(words)
            ballast.unlink()
            assert code == 2, f"{stage} with {left} bytes left ended with {code}: {output}"
            assert "error: could not write" in output and "No space left" in output, output
            assert str(disk) in output, output
        code, output = run(words)
        assert code == 0, f"{stage} could not go on: {output}"
        found[stage] = made(disk / stage)
        if (disk / stage / "made" / "export.json").exists():
            load(disk / stage / "made")
    return found
