"""A study: what `pairstill compare` runs, read from a YAML recipe and checked before anything is computed."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from pairstill.errors import PairstillError, unknown
from pairstill.methods import method_named
from pairstill.protocols import protocol_named
from pairstill.published import ablation_mean, main_rows
from pairstill.reading import Texts
from pairstill.towers import Towers
from pairstill.training import EXPERT_RECIPE, STUDENT_RECIPE, Recipe

PUBLISHED_NAMES = {"tesla": "tesla-wbce"}
"""What a method is called in the published table, where it is called otherwise."""


@dataclass(frozen=True)
class Entry:
    """One row of the table.

    Attributes:
        method: A method, or `full` for training on all real pairs.
        pairs: How many pairs; 0 for `full`.
        label: The row's name.
        settings: What differs from the method's defaults.
        experts: How many of the bank's experts it may use; None for all.
        student: What the students' towers have different from those the set is made with.
        texts: What students of another text encoder read in place of the distilled texts.
        published: Row of the published ablations that is put beside, as `group/choice`.
    """

    method: str
    pairs: int
    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    experts: int | None = None
    student: Mapping[str, Any] = field(default_factory=dict)
    texts: Texts = "as-is"
    published: str | None = None

    def all_settings(self) -> Any:
        """The method's settings with those that differ; None for `full`, which has none."""
        return None if self.method == "full" else settings_of(self.method, self.settings)


@dataclass(frozen=True)
class Study:
    """All that a comparison is made of.

    Attributes:
        name: Of the files of its table.
        title: Of its table.
        entries: Its rows.
        data: A prepared folder or a source, unless `--data` says otherwise.
        towers: What differs from the default towers.
        experts: Experts in the bank that all methods share.
        expert: How an expert is trained.
        protocol: How figures are chosen.
        seeds: Students of each row.
        seed: Of everything.
        student: How a student is trained.
        published: The dataset whose published main table is put beside, or None.
    """

    name: str
    title: str
    entries: tuple[Entry, ...]
    data: str | None = None
    towers: Mapping[str, Any] = field(default_factory=dict)
    experts: int = 10
    expert: Recipe = EXPERT_RECIPE
    protocol: str = "clean"
    seeds: int = 5
    seed: int = 0
    student: Recipe = STUDENT_RECIPE
    published: str | None = None

    def source(self) -> Towers:
        """The towers that sets are made with."""
        return Towers.from_dict(self.towers)

    def towers_of(self, entry: Entry) -> Towers:
        """The towers of a row's students."""
        return Towers.from_dict({**self.source().to_dict(), **entry.student})

    def published_mean(self, entry: Entry) -> float | None:
        """The mean recall that the paper prints for a row, where it has one."""
        if entry.published:
            return ablation_mean(entry.published)
        if self.published is None or entry.label != entry.method:
            return None
        return main_rows(self.published, entry.pairs).get(PUBLISHED_NAMES.get(entry.method, entry.method))


def read_study(path: Path) -> Study:
    """Read a recipe; whatever is wrong in it is said with the row that has it."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PairstillError(f"{path} does not exist.") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PairstillError(f"{path} is not readable YAML: {error}.") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("rows"), list) or not raw["rows"]:
        raise PairstillError(f"{path} has no list of rows: is it a recipe for `pairstill compare`?")
    values = {key: value for key, value in raw.items() if key != "rows"}
    known = [field.name for field in dataclasses.fields(Study) if field.name not in ("name", "entries")]
    _refuse_unknown(values, known, f"{path}: setting")
    for name, default in (("expert", EXPERT_RECIPE), ("student", STUDENT_RECIPE)):
        values[name] = dataclasses.replace(default, **checked(Recipe, values.get(name, {}), f"{path}: {name} setting"))
    values["towers"] = Towers.from_dict(
        checked(Towers, values.get("towers", {}), f"{path}: setting of towers")
    ).to_dict()
    values = checked(Study, values, f"{path}: setting")
    for name in ("experts", "seeds"):
        if values.get(name, 1) < 1:
            raise PairstillError(f"{path}: {name} must be at least 1, not {values[name]}.")
    protocol_named(values.get("protocol", "clean")).check(Towers.from_dict(values["towers"]))
    entries = [entry for number, row in enumerate(raw["rows"], 1) for entry in _entries(row, f"{path}, row {number}")]
    return Study(**{"name": path.stem, "title": path.stem, **values}, entries=tuple(entries))


def _entries(row: Any, where: str) -> list[Entry]:
    """One row of the recipe: an entry for each of its budgets."""
    if not isinstance(row, dict) or "method" not in row:
        raise PairstillError(f"{where} names no method.")
    _refuse_unknown(row, [field.name for field in dataclasses.fields(Entry)], f"{where}: setting")
    method = str(row["method"])
    if method == "full":
        budgets = [0]
    else:
        settings_of(method, row.get("settings", {}), where)
        budgets = row.get("pairs", 100) if isinstance(row.get("pairs"), list) else [row.get("pairs", 100)]
    if not budgets:
        raise PairstillError(f"{where}: pairs is an empty list.")
    for budget in budgets:
        if not isinstance(budget, int) or (budget < 2 and method != "full"):
            raise PairstillError(f"{where}: pairs must be whole numbers of at least 2, not {budget!r}.")
    rest = {key: value for key, value in row.items() if key not in ("method", "pairs", "label")}
    rest = checked(Entry, rest, where)
    if rest.get("experts") is not None and rest["experts"] < 1:
        raise PairstillError(f"{where}: experts must be at least 1, not {rest['experts']}.")
    if rest.get("published") is not None:
        ablation_mean(rest["published"])
    rest["student"] = checked(Towers, rest.get("student", {}), f"{where}: setting of student")
    return [Entry(method, budget, str(row.get("label", method)), **rest) for budget in budgets]


def settings_of(method: str, changes: Mapping[str, Any], where: str = "") -> Any:
    """A method's settings with some changed, or an error that says where."""
    kind = method_named(method).settings
    return kind(**checked(kind, changes, f"{where}: setting of {method}"))


def checked(kind: type, changes: Any, what: str) -> dict[str, Any]:
    """Values for some fields of a dataclass, of the types that it declares; `1e3`, a text to YAML, is a number here."""
    hints = typing.get_type_hints(kind)
    _refuse_unknown(changes, list(hints), what)
    return {name: _as(hints[name], value, f"{what} {name}") for name, value in changes.items()}


def _as(hint: Any, value: Any, what: str) -> Any:
    """A value of the type `hint`: numbers, texts, choices and lists of them are checked, all else is left as it is."""
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise PairstillError(f"{what} must be a list, not {value!r}.")
        return tuple(_as(typing.get_args(hint)[0], item, f"each of {what}") for item in value)
    wanted = [option for option in typing.get_args(hint) or (hint,) if option is not type(None)]
    if value is None and len(wanted) < len(typing.get_args(hint)):
        return None
    if typing.get_origin(hint) is Literal:
        if value not in wanted:
            raise unknown(what, str(value), [str(option) for option in wanted])
        return value
    if wanted in ([bool], [str]) and not isinstance(value, wanted[0]):
        raise PairstillError(f"{what} must be {'true or false' if wanted == [bool] else 'a text'}, not {value!r}.")
    return _number(wanted[0], value, what) if wanted in ([int], [float]) else value


def _number(kind: type[int] | type[float], value: Any, what: str) -> int | float:
    """A number of a kind, `1e3` and 1000.0 being whole ones."""
    try:
        number = float(value)
        if isinstance(value, bool) or kind(number) != number:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise PairstillError(f"{what} must be a {'whole ' * (kind is int)}number, not {value!r}.") from None
    return value if isinstance(value, kind) else kind(number)


def _refuse_unknown(values: Any, known: list[str], what: str) -> None:
    if not isinstance(values, Mapping):
        raise PairstillError(f"{what}s must be a mapping, not {values!r}.")
    for name in values:
        if name not in known:
            raise unknown(what, str(name), known)
