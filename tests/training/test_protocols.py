import pytest

from pairstill.errors import PairstillError
from pairstill.towers.two_tower import Towers
from pairstill.training.protocols import PROTOCOLS, protocol_named


def test_the_clean_protocol_takes_nothing_from_the_test_split_and_is_for_all_towers():
    clean = protocol_named("clean")
    assert (clean.select_on, clean.student) == ("val", "last")
    for train in ("heads", "full"):
        clean.check(Towers(train=train))


@pytest.mark.parametrize("name", [name for name, protocol in PROTOCOLS.items() if protocol.towers == "full"])
def test_a_protocol_that_trains_the_backbone_refuses_towers_that_do_not(name):
    protocol_named(name).check(Towers(train="full"))
    with pytest.raises(PairstillError, match=f"protocol '{name}' trains the image backbone.*--protocol clean"):
        protocol_named(name).check(Towers(train="heads"))


def test_a_wrong_name_gets_help():
    with pytest.raises(PairstillError, match=r"unknown protocol 'claen'\. Did you mean 'clean'"):
        protocol_named("claen")
