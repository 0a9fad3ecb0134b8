import json
import shutil
import threading
import time
import urllib.error
import urllib.request
from urllib.parse import urlencode

import pytest
import uvicorn

import pairstill
from pairstill.cli.main import main
from pairstill.show.serve import search
from pairstill.show.serve.app import build_app
from pairstill.show.serve.served_folder import ServedFolder, progress_of
from pairstill.show.serve.server import HERE, is_loopback
from pairstill.training.training_recipe import Recipe


class Server(uvicorn.Server):
    """On a free port, in a thread."""

    def __init__(self, root, token=None, hosts=HERE):
        super().__init__(uvicorn.Config(build_app(root, token, hosts), port=0, log_level="error"))
        self._thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self):
        self._thread.start()
        while not self.started:
            time.sleep(0.01)
        port = self.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    def __exit__(self, *error):
        self.should_exit = True
        self._thread.join()


def ask(address, headers=None, data=None):
    """Status and body of an answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data, headers or {})) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.fixture(scope="module")
def root(sets, heads_data, tmp_path_factory):
    """A folder with sets, prepared data, two students, and a secret beside it."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "secret").mkdir()
    (folder / "secret" / "student.json").write_text("{}")
    inside = folder / "root"
    inside.mkdir()
    shutil.copytree(sets, inside / "sets")
    shutil.copytree(heads_data.folder, inside / "data")
    quick = Recipe(epochs=3, batch_size=16)
    for name, trained_on in (("few", sets / "mdm"), ("all", "full")):
        pairstill.train_student(trained_on, heads_data, inside / "students" / name, student=quick)
    return inside


@pytest.fixture(scope="module")
def page(root):
    with Server(root) as address:
        yield address


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


def test_pages_answer_and_bring_nothing_from_elsewhere(page):
    for address in ("", "run?name=sets/mdm", "compare?run=sets/mdm&run=sets/random", "search", "report?name=sets/mdm"):
        status, body = ask(f"{page}/{address}")
        assert status == 200, address
        assert b"http://" not in body.replace(b"http://www.w3.org", b"") and b"https://" not in body
    state = json.loads(ask(f"{page}/api/run?name=sets/mdm")[1])
    assert state["done"] == 4 and state["total"] == 4 and len(state["charts"]) == 3
    with urllib.request.urlopen(page) as answer:
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_a_sentence_finds_pictures_and_a_picture_finds_captions(root, page):
    students = [("student", "students/few"), ("student", "students/all")]
    query = urlencode([("q", "a red circle"), ("data", "data"), *students])
    answers = json.loads(ask(f"{page}/api/search?{query}")[1])
    assert [answer["student"] for answer in answers] == ["students/few", "students/all"]
    found = answers[1]["found"]
    assert len(found) == 8 and found == sorted(found, key=lambda one: -one["score"])
    status, picture = ask(f"{page}/picture?data=data&row={found[0]['row']}")
    assert status == 200 and picture[:3] == b"\xff\xd8\xff"
    status, body = ask(f"{page}/api/captions?{urlencode([('data', 'data'), *students])}", data=picture)
    captions = json.loads(body)[1]["found"]
    assert status == 200 and len({one["caption"] for one in captions}) == len(captions) > 0
    assert ask(f"{page}/api/captions?{urlencode([('data', 'data'), *students])}", data=b"junk")[0] == 400
    assert ask(f"{page}/api/search?data=data&student=students/all&q=")[0] == 400


def test_students_are_loaded_when_the_search_page_is_opened(root, page):
    search._index.cache_clear()
    students, data = ServedFolder(root).students(), ServedFolder(root).prepared()[0]
    assert ask(f"{page}/search")[0] == 200
    deadline = time.monotonic() + 60
    while search._index.cache_info().misses < len(students) and time.monotonic() < deadline:
        time.sleep(0.05)
    for name in students:
        search.index_of((root / name).resolve(), (root / data).resolve())
    found = search._index.cache_info()
    assert (found.misses, found.hits) == (len(students), len(students))


def test_the_answer_is_the_students_own(root, page, heads_data):
    student = pairstill.load_student(root / "students/all")
    split = heads_data.encoded().split("test")
    images = student.encode_pixels(heads_data.encoded().pictures(split.images))
    scores = images @ student.encode_texts(["a red circle"])[0]
    query = urlencode({"q": "a red circle", "data": "data", "student": "students/all"})
    best = json.loads(ask(f"{page}/api/search?{query}")[1])[0]["found"][0]
    assert best["score"] == pytest.approx(scores.max().item(), abs=2e-3)


def test_training_pictures_are_not_shown(page, heads_data):
    row = heads_data.encoded().split("train").images[0].item()
    assert ask(f"{page}/picture?data=data&row={row}")[0] == 404
    assert ask(f"{page}/picture?data=data&row=-1")[0] == 404


def test_elsewhere_a_token_is_needed(root):
    with Server(root, token="abc", hosts=None) as address:
        assert ask(address)[0] == 401
        assert ask(f"{address}/?token=abd")[0] == 401
        assert ask(f"{address}/api/runs")[0] == 401
        assert ask(address, {"Cookie": "pairstill_token=abc"})[0] == 200
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        assert opener.open(f"{address}/?token=abc").status == 200
        assert opener.open(f"{address}/api/runs").status == 200


def test_other_names_for_this_machine_are_refused(page):
    assert ask(page, {"Host": "evil.example"})[0] == 400
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("0.0.0.0") and not is_loopback("my-machine")


def test_nothing_can_be_changed(page):
    for method in ("PUT", "DELETE", "POST"):
        request = urllib.request.Request(f"{page}/api/runs", b"", method=method)
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(request)


def test_a_folder_that_is_none_is_said(tmp_path, capsys):
    assert main(["serve", str(tmp_path / "none")]) == 2
    assert "is not a folder" in capsys.readouterr().err
