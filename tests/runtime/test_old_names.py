from dataclasses import dataclass, field

from pairstill.runtime.old_names import old_names, under_new_names, under_old_names


@dataclass
class Settings:
    inner_epochs: int = field(default=3, metadata={"was": "passes"})
    lr: float = 0.1


def test_names_are_taken_both_ways():
    assert old_names(Settings) == {"passes": "inner_epochs"}
    assert under_new_names(Settings, {"passes": 5, "lr": 1.0}) == {"inner_epochs": 5, "lr": 1.0}
    assert under_old_names(Settings(inner_epochs=5)) == {"passes": 5, "lr": 0.1}


def test_new_names_are_left_alone():
    assert under_new_names(Settings, {"inner_epochs": 5}) == {"inner_epochs": 5}
