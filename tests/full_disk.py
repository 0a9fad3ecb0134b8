"""Every stage on a disk that is full, then again with room; run inside a mount namespace of its own.

    unshare --mount python -m tests.full_disk PLACE DISK

PLACE is the folder of `tests.test_faults`. The disk is gone with the namespace.
"""

import contextlib
import io
import subprocess
import sys
from pathlib import Path

from pairstill import cli
from tests.killing import made
from tests.test_faults import SHORT, TINY, words

MOST = 16 * 2**20
LINES = {
    "prepare": (f"prepare source {TINY} --out {{}}", 20_000),
    "experts": ("experts data --count 2 --recipe.epochs 2 --recipe.batch-size 16 --out {}", 40_000),
    "distill": (f"distill data --pairs 4 --settings.iterations 4 {SHORT} --resume --out {{}}", 120_000),
    "hf": ("export set --to hf --out {}", 4_000),
    "webdataset": ("export set --to webdataset --out {}", 4_000),
    "folder": ("export set --to folder --out {}", 4_000),
    "train": ("train set --data data --student.epochs 1 --out {}", 4_000),
    "report": ("report set --out {}/page.html", 4_000),
}


def run(place, line):
    """Exit code and output of a command, in this process."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        code = cli.main(words(place, line))
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


def main(place, disk):
    place, disk = Path(place), Path(disk)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={MOST}", "tmpfs", str(disk)], check=True)
    for stage, (line, room) in LINES.items():
        out = disk / stage / "made"
        for left in (0, room):  # nothing can be written, and something can
            ballast = fill(disk, left)
            code, output = run(place, line.format(out))
            ballast.unlink()
            assert code == 2, f"{stage} with {left} bytes left ended with {code}: {output}"
            assert "error: could not write" in output and "No space left" in output, output
            assert str(disk) in output, output
        code, output = run(place, line.format(out))
        assert code == 0, f"{stage} could not go on: {output}"
        code, output = run(place, line.format(disk / f"{stage}-alone" / "made"))
        assert code == 0, output
        assert made(disk / stage) == made(disk / f"{stage}-alone"), stage
        print(stage, "said and made good")


if __name__ == "__main__":
    main(*sys.argv[1:])
