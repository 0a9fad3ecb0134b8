"""The reference pages that the code knows: commands from the parser, recipe keys from dataclasses, the API by name.

    python docs/make_reference.py

writes them to docs/reference. A test compares them with what this script gives, so that none is stale.
"""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pairstill
from pairstill.cli import commands
from pairstill.cli.main import COMMANDS
from pairstill.cli.parser import parser_of
from pairstill.evaluation.scoring import Result
from pairstill.experts.bank import Bank
from pairstill.features.prepared_folder import PreparedDataset
from pairstill.methods import METHODS
from pairstill.studies.study import Entry, Study
from pairstill.towers.two_tower import Towers
from pairstill.training.training_recipe import Recipe

FOLDER = Path(__file__).parent / "reference"
WIDTH = 100
SHARED = {"recipe": Recipe, "student": Recipe, "towers": Towers, "settings": None}
"""Options that are groups, with the class of their fields; a method's settings have a table of their own."""


def pages() -> dict[str, str]:
    """The text of each generated page by its file's name."""
    return {"commands.md": commands_page(), "recipes.md": recipes_page(), "api.md": api_page()}


def commands_page() -> str:
    """Every command with its options."""
    parts = [
        "# Commands",
        wrapped(
            "Every option can come from a YAML file (`--config FILE`) and be overridden on the command line; "
            "`--print-config` shows all values. Progress goes to standard error, results to standard output. Exit "
            "codes: 0 is success, 2 is bad input (the message says what and where), 130 is Ctrl-C. Groups of options "
            "(`--towers.NAME`, `--student.NAME`, `--recipe.NAME`, `--settings.NAME`) have the fields that "
            "[Recipes](recipes.md) lists."
        ),
    ]
    for name in COMMANDS:
        function = getattr(commands, name)
        about = str(inspect.getdoc(function)).split("\n\nArgs:")[0]
        rows = [row for action in parser_of(name, function)._actions if (row := option_row(action, name))]
        parts += [f"## pairstill {name}", wrapped(about), table(("option", "default", "meaning"), rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def option_row(action: Any, command: str) -> tuple[str, str, str] | None:
    """An option of a command; None for those that every command has, and for the fields of groups."""
    if action.dest in ("help", "config", "print_config") or "." in action.dest:
        return None
    option = action.option_strings[0].replace("_", "-") if action.option_strings else action.dest.upper()
    if command == "ls" and action.dest == "what":
        option = "[WHAT]"
    if action.dest in SHARED:
        return (f"`{option}.NAME`", "", "see [Recipes](recipes.md)")
    return f"`{option}`", shown(action.default), " ".join(f"{action.help}{choices(action._typehint)}".split())


def choices(hint: Any) -> str:
    """The values that a type lets through, where it is a choice of names."""
    names = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
    return f" One of {', '.join(f'`{name}`' for name in names)}." if names else ""


def recipes_page() -> str:
    """Keys of a comparison's recipe, and the fields of what is nested in it."""
    methods = [
        part
        for name, method in METHODS.items()
        for part in (f"### {name}", f"{method.summary[0].upper()}{method.summary[1:]}.", fields_table(method.settings))
    ]
    return (
        "\n\n".join(
            [
                "# Recipes",
                wrapped(
                    "A YAML file for `pairstill compare`: the keys of a study, and its `rows`. The same names are "
                    "options of commands: `--towers.image_size 112`, `--student.lr 0.01`, `--settings.iterations 40`. "
                    "A recipe for `pairstill distill --config` has that command's options as keys."
                ),
                "## Study",
                fields_table(Study, leave_out=("name", "entries"), more=[("`rows`", "", "The rows; see below.")]),
                "## Row",
                wrapped("`pairs` is a number or a list; each number makes a row."),
                fields_table(Entry),
                "## Towers",
                fields_table(Towers),
                "## Training recipe",
                wrapped(
                    "Of experts (`recipe`, `expert_recipe`) and of students (`student`, `student_recipe`). Defaults "
                    "here are those of the class; `pairstill evaluate --help` shows the students', "
                    "`pairstill experts --help` the experts'."
                ),
                fields_table(Recipe),
                "## Settings of methods",
                *methods,
            ]
        )
        + "\n"
    )


def fields_table(kind: type, leave_out: tuple[str, ...] = (), more: list[tuple[str, str, str]] | None = None) -> str:
    """The fields of a dataclass with their defaults and what its docstring says of them."""
    about, hints = field_docs(kind), typing.get_type_hints(kind)
    rows = [
        (f"`{field.name}`", shown(default_of(field)), about[field.name] + choices(hints[field.name]) + old_name(field))
        for field in dataclasses.fields(kind)
        if field.name not in leave_out
    ]
    return table(("key", "default", "meaning"), rows + (more or [])) or "No settings."


def field_docs(kind: type) -> dict[str, str]:
    """What the docstrings of a class and its bases say of each field, by the field's name."""
    from docstring_parser import parse

    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        for entry in parse(base.__doc__ or "").params:
            for name in entry.arg_name.split(","):
                found[name.strip()] = " ".join((entry.description or "").split())
    return found


def old_name(field: dataclasses.Field[Any]) -> str:
    """The name that a field had before."""
    return f" (Was `{field.metadata['was']}`.)" if "was" in field.metadata else ""


def default_of(field: dataclasses.Field[Any]) -> Any:
    """A field's default; `...` where it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return ... if field.default is dataclasses.MISSING else field.default


def shown(value: Any) -> str:
    """A default as a recipe would write it; nothing for none."""
    if value is None or value is ... or value in ((), [], {}) or type(value).__name__ == "UnknownDefault":
        return ""
    if dataclasses.is_dataclass(value):
        return "see below"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def api_page() -> str:
    """Every public name, for mkdocstrings to fill in."""
    homes = {name: f"pairstill.{pairstill._HOMES.get(name, 'api')}.{name}" for name in pairstill.__all__}
    order = sorted(pairstill.__all__, key=lambda name: (name[0].isupper(), name))
    handed_out = [f"{kind.__module__}.{kind.__qualname__}" for kind in (PreparedDataset, Bank, Result)]
    parts = ["# Python API", wrapped("Names of `pairstill`, functions first, then what they take and return.")]
    parts += [f"::: {homes[name]}" for name in order] + [f"::: {place}" for place in handed_out]
    return "\n\n".join(parts) + "\n"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table; nothing where there is no row."""
    if not rows:
        return ""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def wrapped(text: str) -> str:
    """Text in lines of the width that all pages have."""
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
