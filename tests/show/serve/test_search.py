import json
import time
from urllib.parse import urlencode

import pytest

import pairstill
from pairstill.show.serve import search
from pairstill.show.serve.served_folder import ServedFolder
from tests.support.serving import ask


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
