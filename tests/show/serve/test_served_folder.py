from urllib.parse import urlencode

import pytest

from pairstill.show.serve.served_folder import ServedFolder, progress_of
from tests.support.serving import ask


def test_everything_below_the_folder_is_found(root):
    place = ServedFolder(root)
    assert place.runs() == ["sets/mdm", "sets/random"]
    assert place.students() == ["students/all", "students/few"]
    assert place.prepared() == ["data"]
    assert progress_of(place.view("sets/mdm"))["finished"] is True


@pytest.mark.parametrize("name", ["../secret", "..", "/etc", "sets/../../secret", "sets/mdm/run/run.json", "no"])
def test_nothing_outside_the_folder_is_shown(root, page, name):
    assert ServedFolder(root).inside(name) is None
    for address in ("run", "api/run", "report", "picture"):
        assert ask(f"{page}/{address}?{urlencode({'name': name, 'data': name, 'row': 0})}")[0] == 404
    for address in (
        f"api/search?{urlencode({'q': 'x', 'data': name, 'student': 'students/all'})}",
        f"api/search?{urlencode({'q': 'x', 'data': 'data', 'student': name})}",
    ):
        assert ask(f"{page}/{address}")[0] == 404
