from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from pairstill.distillation.setting_checks import check_settings
from pairstill.errors import PairstillError


@dataclass
class Settings:
    count: float | None = 1
    lr: float | None = 0.1
    momentum: float = 0.0
    student_momentum: float | None = None

    def __post_init__(self):
        check_settings(self, {"count": 1}, ("lr",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 0}, r"settings\.count must be at least 1, not 0"),
        ({"count": math.nan}, r"settings\.count must be at least 1, not nan"),
        ({"lr": 0.0}, r"settings\.lr must be above 0, not 0\.0"),
        ({"lr": math.nan}, r"settings\.lr must be above 0, not nan"),
        ({"momentum": 1.0}, r"settings\.momentum must be at least 0 and below 1, not 1\.0"),
        ({"momentum": math.nan}, r"settings\.momentum must be"),
        ({"student_momentum": -0.1}, r"settings\.student_momentum must be"),
    ],
)
def test_what_is_too_small_or_no_number_is_refused_by_name(change, message):
    with pytest.raises(PairstillError, match=message):
        Settings(**change)


def test_bounds_belong_to_what_is_allowed_and_none_is_no_value():
    assert Settings() == Settings()
    assert Settings(count=None, lr=None, momentum=0.99, student_momentum=0.0).momentum == 0.99
