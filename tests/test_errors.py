from pairstill.errors import unknown


def test_unknown_without_a_near_name_still_lists():
    assert str(unknown("thing", "zzz", ["b", "a"])) == "unknown thing 'zzz'. Known: a, b."
