from dataclasses import replace

import pytest

from pairstill.errors import PairstillError
from pairstill.towers.two_tower import Towers
from pairstill.training.protocols import PROTOCOLS, protocol_named
from pairstill.training.training_recipe import FULL_STUDENT_RECIPE, STUDENT_RECIPE


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


def test_students_train_as_published_but_for_ours_in_full():
    heads, full = Towers(train="heads"), Towers(train="full")
    assert protocol_named("clean").student_recipe(heads) == STUDENT_RECIPE
    assert protocol_named("clean").student_recipe(full) == FULL_STUDENT_RECIPE != STUDENT_RECIPE
    assert all(protocol_named(name).student_recipe(full) == STUDENT_RECIPE for name in ("mdm", "lors"))


def test_one_short_student_chooses_an_iteration_in_full_and_two_whole_ones_elsewhere():
    heads, full = Towers(train="heads"), Towers(train="full")
    assert protocol_named("clean").selection(heads, STUDENT_RECIPE) == (2, STUDENT_RECIPE)
    assert all(protocol_named(name).selection(full, STUDENT_RECIPE) == (2, STUDENT_RECIPE) for name in ("mdm", "lors"))
    count, recipe = protocol_named("clean").selection(full, FULL_STUDENT_RECIPE)
    assert (count, recipe) == (1, replace(FULL_STUDENT_RECIPE, epochs=20))
    assert protocol_named("clean").selection(full, replace(FULL_STUDENT_RECIPE, epochs=1))[1].epochs == 1


def test_rows_of_clean_in_full_are_not_those_that_had_augmented_students():
    heads, full = Towers(train="heads"), Towers(train="full")
    assert [protocol_named("clean").key(towers) for towers in (heads, full)] == ["clean", "clean, third"]
    assert all(protocol_named(name).key(full) == name for name in ("mdm", "lors"))
