"""Options of a command: from its function's signature, a YAML file (--config) and the command line."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import yaml

from pairstill.errors import PairstillError
from pairstill.runtime.old_names import old_names, under_new_names, warn_of_old_name

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


def parse(name: str, function: Callable[..., None], arguments: list[str]) -> dict[str, Any]:
    """The values that a command's function is called with."""
    from jsonargparse import ArgumentError

    settings = _settings_of(function, arguments)
    parser, which = parser_of(name, function, settings), ""
    if settings is not None:
        which = f" --method {_method_of(arguments)}"
        if not dataclasses.fields(settings):
            parser.description = f"{parser.description}\n\nMethod '{_method_of(arguments)}' has no settings."
    words = _with_underscores(arguments, function)
    if settings is not None:
        words = _with_new_names(words, settings)
    try:
        namespace = parser.parse_args(words)
    except ArgumentError as error:
        raise PairstillError(f"{_readable(str(error))} See: pairstill {name}{which} --help") from None
    instantiate = getattr(parser, "instantiate", parser.instantiate_classes)  # its name before jsonargparse 4.49
    values = instantiate(namespace).as_dict()
    return {key: value for key, value in values.items() if key not in ("config", "print_config")}


def parser_of(name: str, function: Callable[..., None], settings: type | None = None) -> ArgumentParser:
    """The parser of a command; `settings` is the class of a method's own."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(
        prog=f"pairstill {name}",
        description=str(inspect.getdoc(function)).split("\n\nArgs:")[0],
        formatter_class=_formatter(),
        exit_on_error=False,
        print_config="--print_config",
    )
    parser.add_argument("--config", action="config", help="YAML file with any of these options.")
    parser.add_function_arguments(function, as_positional=True, skip={"settings"})
    if settings is not None:
        parser.add_class_arguments(settings, "settings")
    return parser


def _settings_of(function: Callable[..., None], arguments: list[str]) -> type | None:
    """The class of the settings of the method that is asked for; None for a command without any."""
    from pairstill.methods import method_named

    if "settings" not in inspect.signature(function).parameters:
        return None
    return method_named(_method_of(arguments)).settings


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
