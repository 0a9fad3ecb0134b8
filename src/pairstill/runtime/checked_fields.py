"""Values for the fields of a dataclass, from a file or a mapping: checked, converted, and refused by name."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any, Literal

from pairstill.errors import PairstillError, unknown
from pairstill.runtime.old_names import under_new_names


def checked(kind: type, changes: Any, what: str) -> dict[str, Any]:
    """Values for some fields of a dataclass, of the types that it declares; `1e3`, a text to YAML, is a number here."""
    hints = typing.get_type_hints(kind)
    if isinstance(changes, Mapping):
        changes = under_new_names(kind, changes, f"{what} ")
    refuse_unknown(changes, list(hints), what)
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


def refuse_unknown(values: Any, known: list[str], what: str) -> None:
    """An error for a value that is no mapping, or has a name that is not known."""
    if not isinstance(values, Mapping):
        raise PairstillError(f"{what}s must be a mapping, not {values!r}.")
    for name in values:
        if name not in known:
            raise unknown(what, str(name), known)
