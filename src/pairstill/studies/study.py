"""A study: what `pairstill compare` runs, read from a YAML recipe and checked before anything is computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from pairstill.distillation.contract import settings_of
from pairstill.errors import PairstillError
from pairstill.evaluation.text_adaptation import TextAdaptation
from pairstill.methods import method_named
from pairstill.runtime.checked_fields import checked, refuse_unknown
from pairstill.runtime.old_names import under_new_names
from pairstill.studies.published import ablation_mean, main_rows
from pairstill.towers.two_tower import Towers
from pairstill.training.protocols import protocol_named
from pairstill.training.training_recipe import (
    EXPERT_RECIPE,
    STUDENT_RECIPE,
    Recipe,
    RecipeChanges,
    changed,
    expert_recipe,
)

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
        student_towers: What the students' towers have different from those the set is made with.
        texts: What students of another text encoder read in place of the distilled texts.
        published: Row of the published ablations that is put beside, as `group/choice`.
        grid: Trials: each has these settings besides, and the best on the split that the protocol chooses by is the
            row.
    """

    method: str
    pairs: int
    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    experts: int | None = None
    student_towers: Mapping[str, Any] = field(default_factory=dict, metadata={"was": "student"})
    texts: TextAdaptation = "as-is"
    published: str | None = None
    grid: tuple[Mapping[str, Any], ...] = ()

    def trials(self) -> list[Entry]:
        """The row with the settings of each trial; itself where it has no grid."""
        return [replace(self, settings={**self.settings, **changes}, grid=()) for changes in self.grid] or [self]

    def all_settings(self) -> Any:
        """The method's settings with those that differ; None for `full`, which has none."""
        return None if self.method == "full" else settings_of(method_named(self.method), self.settings)


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
        expert_recipe: How an expert is trained.
        protocol: How figures are chosen.
        seeds: Students of each row.
        seed: Of everything.
        student_recipe: How a student is trained.
        published: The dataset whose published main table is put beside, or None.
    """

    name: str
    title: str
    entries: tuple[Entry, ...]
    data: str | None = None
    towers: Mapping[str, Any] = field(default_factory=dict)
    experts: int = 10
    expert_recipe: Recipe = field(default=EXPERT_RECIPE, metadata={"was": "expert"})
    protocol: str = "clean"
    seeds: int = 5
    seed: int = 0
    student_recipe: Recipe = field(default=STUDENT_RECIPE, metadata={"was": "student"})
    published: str | None = None

    def source(self) -> Towers:
        """The towers that sets are made with."""
        return Towers.from_dict(self.towers)

    def towers_of(self, entry: Entry) -> Towers:
        """The towers of a row's students."""
        return Towers.from_dict({**self.source().to_dict(), **entry.student_towers})

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
    values = under_new_names(Study, values, f"{path}: setting ")
    known = [field.name for field in dataclasses.fields(Study) if field.name not in ("name", "entries")]
    refuse_unknown(values, known, f"{path}: setting")
    given = {
        name: RecipeChanges(**checked(RecipeChanges, values.pop(name, {}), f"{path}: setting of {name}"))
        for name in ("expert_recipe", "student_recipe")
    }
    values["towers"] = Towers.from_dict(
        checked(Towers, values.get("towers", {}), f"{path}: setting of towers")
    ).to_dict()
    values = checked(Study, values, f"{path}: setting")
    for name in ("experts", "seeds"):
        if values.get(name, 1) < 1:
            raise PairstillError(f"{path}: {name} must be at least 1, not {values[name]}.")
    protocol, towers = protocol_named(values.get("protocol", "clean")), Towers.from_dict(values["towers"])
    protocol.check(towers)
    values["expert_recipe"] = changed(expert_recipe(towers), given["expert_recipe"])
    values["student_recipe"] = changed(protocol.student_recipe(towers), given["student_recipe"])
    entries = [entry for number, row in enumerate(raw["rows"], 1) for entry in _entries(row, f"{path}, row {number}")]
    return Study(**{"name": path.stem, "title": path.stem, **values}, entries=tuple(entries))


def _entries(row: Any, where: str) -> list[Entry]:
    """One row of the recipe: an entry for each of its budgets."""
    if not isinstance(row, dict) or "method" not in row:
        raise PairstillError(f"{where} names no method.")
    row = under_new_names(Entry, row, f"{where}: setting ")
    refuse_unknown(row, [field.name for field in dataclasses.fields(Entry)], f"{where}: setting")
    method = str(row["method"])
    if method == "full":
        budgets = [0]
    else:
        settings_of(method_named(method), row.get("settings", {}), where)
        budgets = row.get("pairs", 100) if isinstance(row.get("pairs"), list) else [row.get("pairs", 100)]
    if not budgets:
        raise PairstillError(f"{where}: pairs is an empty list.")
    for budget in budgets:
        if not isinstance(budget, int) or (budget < 2 and method != "full"):
            raise PairstillError(f"{where}: pairs must be whole numbers of at least 2, not {budget!r}.")
    rest = {key: value for key, value in row.items() if key not in ("method", "pairs", "label")}
    rest = checked(Entry, rest, where)
    for number, changes in enumerate(rest.get("grid", ()), 1):
        if "check_every" not in settings_of(method_named(method), row.get("settings", {})).__dict__:
            raise PairstillError(f"{where}: {method} is never scored on the way, so it can have no grid.")
        settings_of(
            method_named(method), {**row.get("settings", {}), **changes}, f"{where}, trial {number} of its grid"
        )
    if rest.get("experts") is not None and rest["experts"] < 1:
        raise PairstillError(f"{where}: experts must be at least 1, not {rest['experts']}.")
    if rest.get("published") is not None:
        ablation_mean(rest["published"])
    changes = rest.get("student_towers", {})
    rest["student_towers"] = checked(Towers, changes, f"{where}: setting of student_towers")
    return [Entry(method, budget, str(row.get("label", method)), **rest) for budget in budgets]
