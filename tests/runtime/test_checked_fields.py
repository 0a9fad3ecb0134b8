from dataclasses import dataclass, field
from typing import Literal, Optional

import pytest

from pairstill.errors import PairstillError
from pairstill.runtime.checked_fields import checked, refuse_unknown


@dataclass
class Fields:
    count: int = 3
    lr: float = 0.1
    name: str = "a"
    on: bool = False
    kind: Literal["fast", "slow"] = "fast"
    names: tuple[str, ...] = ()
    width: Optional[int] = None  # noqa: UP045 (as in a class of Python 3.9)
    inner: int = field(default=1, metadata={"was": "old"})


def test_values_have_the_types_that_the_fields_declare():
    given = {"count": "1e3", "lr": 2, "name": "b", "on": True, "kind": "slow", "names": ["x", "y"], "width": None}
    found = checked(Fields, given, "setting")
    assert found == {**given, "count": 1000, "lr": 2.0, "names": ("x", "y")}
    assert (type(found["count"]), type(found["lr"])) == (int, float)
    assert checked(Fields, {"width": 7.0}, "setting") == {"width": 7}
    assert checked(Fields, {"old": 5}, "setting") == {"inner": 5}
    assert checked(Fields, {}, "setting") == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 2.5}, r"setting count must be a whole number, not 2\.5"),
        ({"count": True}, "setting count must be a whole number, not True"),
        ({"count": None}, "setting count must be a whole number, not None"),
        ({"lr": "fast"}, "setting lr must be a number, not 'fast'"),
        ({"name": 3}, "setting name must be a text, not 3"),
        ({"on": "off"}, "setting on must be true or false, not 'off'"),
        ({"kind": "slwo"}, "unknown setting kind 'slwo'. Did you mean 'slow'"),
        ({"names": "x"}, "setting names must be a list, not 'x'"),
        ({"names": ["x", 1]}, "each of setting names must be a text, not 1"),
        ({"cuont": 1}, "unknown setting 'cuont'. Did you mean 'count'"),
        ([1], r"settings must be a mapping, not \[1\]"),
    ],
)
def test_what_a_field_can_not_hold_is_refused_by_its_name(change, message):
    with pytest.raises(PairstillError, match=message):
        checked(Fields, change, "setting")


def test_a_name_that_is_no_text_is_unknown_too():
    with pytest.raises(PairstillError, match="unknown row '1'"):
        refuse_unknown({1: 2}, ["a"], "row")
