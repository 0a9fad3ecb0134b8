"""Commands in real processes that cost no imports: one process imports everything and forks a child for each.

It computes nothing itself before it forks, and its children use one thread: threads do not survive a fork.
"""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

CAPABILITIES = 0x20080522
"""The version of the system's own record of what a process may do."""


class Commands:
    """Starts commands of the command line; a context, which ends the process that forks them."""

    def __enter__(self):
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forking"], stdin=pipe, stdout=pipe, text=True
        )
        return self

    def __exit__(self, *error):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def start(self, *arguments, output, plain=False):
        """Start a command whose output goes to a file, if `plain` without root's powers; returns its process id."""
        return self._ask({"start": [str(word) for word in arguments], "output": str(output), "plain": plain})

    def fill_disk(self, disk, lines, output):
        """Run `tests.support.full_disk` in a process of its own; returns its exit code."""
        return self.wait(self._ask({"start": [str(disk), lines], "output": str(output), "full_disk": True}))

    def wait(self, process):
        """The exit code of a command, when it has ended."""
        return self._ask({"wait": process})

    def run(self, *arguments, output, plain=False):
        """Exit code and output of a command."""
        code = self.wait(self.start(*arguments, output=output, plain=plain))
        return code, Path(output).read_text()

    def _ask(self, request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def main():
    """Answer requests, one a line, until there are no more."""
    from pairstill.towers.torchvision_shim import ensure_torchvision

    ensure_torchvision()
    import datasets  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import timm  # noqa: F401
    import torch
    from transformers import AutoModel, AutoTokenizer, BertModel, BertTokenizerFast  # noqa: F401

    from pairstill.cli import commands  # noqa: F401
    from pairstill.cli import main as cli
    from pairstill.sets import exports, saved_student  # noqa: F401
    from pairstill.show.report import page  # noqa: F401
    from pairstill.studies import comparison  # noqa: F401

    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            print(os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1]), flush=True)
            continue
        child = os.fork()
        if child == 0:
            os._exit(in_child(cli, **request))
        print(child, flush=True)


def in_child(cli, start, output, plain=False, full_disk=False):
    """Run a command, or the commands that meet a full disk."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with open(output, "w", encoding="utf-8") as file:  # noqa: PTH123
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        if plain:
            give_up_powers()
        try:
            if full_disk:
                from tests.support import full_disk as program

                print(json.dumps(program.main(*start)))
                return 0
            return cli.main(start)
        except BaseException:
            import traceback

            traceback.print_exc()
            return 1
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):
                    stream.flush()


def give_up_powers():
    """Be bound by the rights of files like any user: root is otherwise not."""
    header, none = (ctypes.c_uint32 * 2)(CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    if os.geteuid() == 0 and ctypes.CDLL(None).capset(header, none) != 0:
        raise OSError("root keeps its powers here")


if __name__ == "__main__":
    main()
