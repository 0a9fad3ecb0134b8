"""The command line: command to function, a thin skin. Options come from the functions' signatures."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable
from typing import Any

import yaml

from pairstill.errors import PairstillError, unknown, without_secrets
from pairstill.runtime.old_names import old_names, under_new_names, warn_of_old_name
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

    if name == "ls" and rest and not rest[0].startswith("-"):
        rest = ["--what", *rest]
    function = getattr(commands, name)
    function(**_parse(name, function, rest))
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
    """Without control characters: a picture's name, which others chose, must not steer the terminal."""
    return "".join(letter if letter == "\n" or letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _again(arguments: list[str]) -> str:
    """The command that goes on: the same one; `distill` wants to be told that it is to resume."""
    resume = ["--resume"] if arguments[:1] == ["distill"] and "--resume" not in arguments else []
    return without_secrets(shlex.join(["pairstill", *arguments, *resume]))


def _parse(name: str, function: Callable[..., None], arguments: list[str]) -> dict[str, Any]:
    """Options of a command from its signature, a YAML file (--config) and the command line."""
    from jsonargparse import ArgumentError, ArgumentParser

    from pairstill.methods import method_named

    parser = ArgumentParser(
        prog=f"pairstill {name}",
        description=str(inspect.getdoc(function)).split("\n\nArgs:")[0],
        formatter_class=_formatter(),
        exit_on_error=False,
        print_config="--print_config",
    )
    parser.add_argument("--config", action="config", help="YAML file with any of these options.")
    parser.add_function_arguments(function, as_positional=True, skip={"settings"})
    words = _with_underscores(arguments, function)
    if "settings" in inspect.signature(function).parameters:
        settings = method_named(_method_of(arguments)).settings
        parser.add_class_arguments(settings, "settings")
        words = _with_new_names(words, settings)
    try:
        namespace = parser.parse_args(words)
    except ArgumentError as error:
        raise PairstillError(f"{_readable(str(error))} See: pairstill {name} --help") from None
    instantiate = getattr(parser, "instantiate", parser.instantiate_classes)  # its name before jsonargparse 4.49
    values = instantiate(namespace).as_dict()
    return {key: value for key, value in values.items() if key not in ("config", "print_config")}


def _with_new_names(words: list[str], settings: type) -> list[str]:
    """Settings of a method that were renamed, as options and in a YAML file, by the names that they have now."""
    old = old_names(settings)
    result = []
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        name = option.removeprefix("--settings.")
        if option != name and name in old:
            warn_of_old_name(option, f"--settings.{old[name]}")
            result.append(f"--settings.{old[name]}{equals}{value}")
        elif place and words[place - 1] == "--config":
            result.append(_config_with_new_names(word, settings))
        elif option == "--config" and equals:
            result.append(f"--config={_config_with_new_names(value, settings)}")
        else:
            result.append(word)
    return result


def _config_with_new_names(path: str, settings: type) -> str:
    """The path of a YAML file, or its text with new names where it has old ones."""
    given = _read_config(path)
    own = given.get("settings")
    if not isinstance(own, dict) or not old_names(settings).keys() & own.keys():
        return path
    return yaml.safe_dump({**given, "settings": under_new_names(settings, own, "settings.")})


def _read_config(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            return dict(yaml.safe_load(file) or {})
    except (OSError, yaml.YAMLError, TypeError, ValueError) as error:
        raise PairstillError(f"--config {path}: not a readable YAML file: {error}.") from error


def _method_of(arguments: list[str]) -> str:
    """The method that the command line or its YAML file names, before anything else is parsed."""
    from pairstill.api import DEFAULT_METHOD

    method = DEFAULT_METHOD
    for place, word in enumerate(arguments):
        option, equals, value = word.partition("=")
        following = value if equals else (arguments[place + 1] if place + 1 < len(arguments) else "")
        if option == "--method":
            return following
        if option == "--config":
            method = str(_read_config(following).get("method", method))
    return method


def _with_underscores(arguments: list[str], function: Callable[..., None]) -> list[str]:
    """`--image-size` as signatures spell it, and a bare flag such as `--resume` as `--resume=true`."""
    flags = {f"--{name}" for name, p in inspect.signature(function).parameters.items() if isinstance(p.default, bool)}
    result = []
    for place, word in enumerate(arguments):
        option, equals, value = word.partition("=")
        if not option.startswith("--"):
            result.append(word)
            continue
        option = "--" + option[2:].replace("-", "_")
        following = arguments[place + 1].lower() if place + 1 < len(arguments) else ""
        bare_flag = option in flags and not equals and following not in ("true", "false")
        result.append(f"{option}=true" if bare_flag else option + equals + value)
    return result


def _readable(message: str) -> str:
    """The parser's message in the words of the command line: --image-size, not key "image_size"."""
    text = " ".join(message.split()) or "wrong options"
    text = re.sub(r"[Pp]arser key ['\"]([\w.]+)['\"]", lambda key: "--" + key[1].replace("_", "-"), text)
    text = re.sub(r"<class '(\w+)'>", r"\1", text)
    return text.rstrip(".") + "."


def _formatter() -> type:
    """Help that spells options with dashes."""
    from jsonargparse import DefaultHelpFormatter

    class Dashes(DefaultHelpFormatter):
        def _format_action_invocation(self, action: Any) -> str:
            text = str(super()._format_action_invocation(action))
            return " ".join(w.replace("_", "-") if w.startswith("--") else w for w in text.split(" "))

        def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any = None) -> None:
            super().add_usage(usage or "%(prog)s [options] " + _positionals(actions), actions, groups, prefix)

    return Dashes


def _positionals(actions: Any) -> str:
    return " ".join(action.dest.upper() for action in actions if not action.option_strings)
