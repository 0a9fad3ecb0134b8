from pathlib import Path

import pytest

from pairstill import methods
from pairstill.errors import PairstillError
from pairstill.methods import FILES, METHODS, method_named


def test_every_file_of_a_family_is_a_method():
    found = Path(methods.__file__).parent.glob("*/*.py")
    assert sorted(FILES) == sorted(f"{path.parent.name}.{path.stem}" for path in found if path.stem != "__init__")
    assert len(METHODS) == len(FILES)  # no two have one name


def test_every_method_has_a_name_a_summary_and_settings_that_need_no_values():
    for name, method in METHODS.items():
        assert method.name == name and method.summary
        assert isinstance(method.settings(), method.settings)
        assert list(method.extra_encoders(method.settings())) == []


def test_a_method_is_found_by_its_name_and_a_wrong_one_gets_help():
    assert method_named("k-center") is METHODS["k-center"]
    with pytest.raises(PairstillError, match=r"unknown method 'rehersal'\. Did you mean 'rehearsal'"):
        method_named("rehersal")
