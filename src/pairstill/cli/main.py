"""The command line: command to function, a thin skin."""

from __future__ import annotations

import os
import shlex
import sys

from pairstill.errors import PairstillError, unknown, without_secrets
from pairstill.runtime.progress import console

COMMANDS = {
    "demo": "embedded data, pip-installed weights: experts, distil, score, in minutes",
    "ls": "list methods, encoders, sources, protocols",
    "prepare": "check a dataset, split it, cache its features",
    "experts": "train the experts that mdm and trajectory methods read, or import another project's buffers",
    "distill": "distil prepared data into a few pairs",
    "evaluate": "train students on a distilled set and score them",
    "compare": "many methods on the same work, from a recipe, as one table",
    "train": "train one student on a distilled set and keep it",
    "export": "a set as a Hugging Face dataset, WebDataset shards or PNG files",
    "push": "upload a set, an export or a student to a hub",
    "report": "one HTML file to look at a set, several, or a comparison",
    "serve": "a local web page: live progress, comparison, search with students",
}

USAGE = """pairstill distils an image-caption dataset into a few hundred pairs that train a retrieval model.

usage: pairstill COMMAND [options]      pairstill COMMAND --help

{commands}

A whole run on your own data:
  pairstill prepare  photos/ --out work/data --towers.image-size 112
  pairstill distill  work/data --pairs 100 --out work/set
  pairstill evaluate work/set --data work/data
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 2 for bad input, 130 when interrupted."""
    arguments = sys.argv[1:] if argv is None else argv
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # this command shows its own
    if os.environ.get("RANK", "0") != "0":  # one of the processes of torchrun speaks for all
        console.quiet = True
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    try:
        return _dispatch(arguments)
    except PairstillError as error:
        return _report(error, arguments)
    except KeyboardInterrupt:
        line = f"stopped; what was finished is kept.\nContinue with:  {_again(arguments)}"
        console.print(line, soft_wrap=True, markup=False)
        return 130
    except BrokenPipeError:
        return 0
    except OSError as error:  # a disk that is full or a folder that is locked, wherever it was met
        return _report(PairstillError(f"{error.filename or 'a file'}: {error.strerror or error}."), arguments)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        listing = "\n".join(f"  {name:<9} {summary}" for name, summary in COMMANDS.items())
        print(USAGE.format(commands=listing))
        return 0
    if arguments[0] == "--version":
        from importlib import metadata

        print(f"pairstill {metadata.version('pairstill')}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    from pairstill.cli import commands
    from pairstill.cli.parser import parse

    if name == "ls" and rest and not rest[0].startswith("-"):
        rest = ["--what", *rest]
    function = getattr(commands, name)
    function(**parse(name, function, rest))
    return 0


def _report(error: PairstillError, arguments: list[str]) -> int:
    from pairstill.runtime.run_folder import Interrupted

    if isinstance(error, Interrupted):
        console.print(f"{error}\nContinue with:  {_again(arguments)}", soft_wrap=True, markup=False)
        return 130
    console.print("[red]error:[/]", end=" ")
    console.print(_printable(str(error)), soft_wrap=True, markup=False)
    return 2


def _printable(text: str) -> str:
    """Without control characters: an image's name, which others chose, must not steer the terminal."""
    return "".join(letter if letter == "\n" or letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _again(arguments: list[str]) -> str:
    """The command that goes on: the same one; `distill` wants to be told that it is to resume."""
    resume = ["--resume"] if arguments[:1] == ["distill"] and "--resume" not in arguments else []
    return without_secrets(shlex.join(["pairstill", *arguments, *resume]))
