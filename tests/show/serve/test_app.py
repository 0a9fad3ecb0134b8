import json
import urllib.error
import urllib.request

import pytest

from tests.support.serving import Server, ask


def test_pages_answer_and_bring_nothing_from_elsewhere(page):
    for address in ("", "run?name=sets/mdm", "compare?run=sets/mdm&run=sets/random", "search", "report?name=sets/mdm"):
        status, body = ask(f"{page}/{address}")
        assert status == 200, address
        assert b"http://" not in body.replace(b"http://www.w3.org", b"") and b"https://" not in body
    state = json.loads(ask(f"{page}/api/run?name=sets/mdm")[1])
    assert state["done"] == 4 and state["total"] == 4 and len(state["charts"]) == 3
    with urllib.request.urlopen(page) as answer:
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_elsewhere_a_token_is_needed(root):
    with Server(root, token="abc", hosts=None) as address:
        assert ask(address)[0] == 401
        assert ask(f"{address}/?token=abd")[0] == 401
        assert ask(f"{address}/api/runs")[0] == 401
        assert ask(address, {"Cookie": "pairstill_token=abc"})[0] == 200
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        assert opener.open(f"{address}/?token=abc").status == 200
        assert opener.open(f"{address}/api/runs").status == 200


def test_nothing_can_be_changed(page):
    for method in ("PUT", "DELETE", "POST"):
        request = urllib.request.Request(f"{page}/api/runs", b"", method=method)
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(request)
