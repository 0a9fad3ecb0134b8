"""Uploads against a hub of our own: the few addresses that an upload needs, on this machine."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import pairstill
from pairstill.cli.main import main
from pairstill.errors import PairstillError
from pairstill.training.training_recipe import Recipe


class Hub(BaseHTTPRequestHandler):
    made, files = [], {}

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self.headers.get("Authorization") != "Bearer hf_secret":
            return self.answer({"error": "log in"}, 401)
        if self.path == "/api/repos/create":
            wanted = json.loads(body)
            self.made.append(wanted)
            place = "datasets/me" if wanted.get("type") == "dataset" else "me"
            return self.answer({"url": f"{self.address()}/{place}/{wanted['name']}", "name": wanted["name"]})
        if "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            return self.answer(
                {"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]}
            )
        if "/commit/" in self.path:
            lines = [json.loads(line) for line in body.split("\n") if line]
            for line in lines:
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            url = f"{self.address()}/datasets/me/pairs/commit/{'0' * 40}"
            return self.answer({"commitUrl": url, "commitOid": "0" * 40, "success": True, "hookOutput": ""})
        return self.answer({"valid": True, "message": "", "errors": [], "warnings": []})

    def do_GET(self):
        self.answer({"id": "me/pairs", "sha": "0" * 40, "private": True, "siblings": []})

    def address(self):
        return f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def hub(monkeypatch):
    Hub.made, Hub.files = [], {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_a_set_goes_up_without_its_run(sets, hub, capsys):
    assert main(["push", str(sets / "mdm"), "--repo", "me/pairs", "--endpoint", hub]) == 0
    assert "me/pairs/commit" in capsys.readouterr().out
    assert Hub.made[0]["name"] == "pairs" and Hub.made[0]["type"] == "dataset"
    assert Hub.made[0].get("private") is True or Hub.made[0].get("visibility") == "private"  # by the client's version
    names = {"README.md", "captions.jsonl", "distilled.json", "images.safetensors", "texts.safetensors"}
    assert set(Hub.files) == names
    assert Hub.files["images.safetensors"] == (sets / "mdm/images.safetensors").read_bytes()


def test_a_student_goes_up_as_a_model(heads_data, sets, hub, tmp_path):
    pairstill.train_student(sets / "random", heads_data, tmp_path / "s", student=Recipe(epochs=1, batch_size=16))
    pairstill.push_to_hub(tmp_path / "s", "me/student", private=False, endpoint=hub)
    assert Hub.made[0].get("type", "model") == "model"
    assert {"student.json", "student.safetensors", "README.md"} == set(Hub.files)


def test_what_can_not_go_up_is_said(sets, hub, tmp_path, monkeypatch):
    with pytest.raises(PairstillError, match="neither a distilled set"):
        pairstill.push_to_hub(tmp_path, "me/x", endpoint=hub)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(PairstillError, match="logged in"):
        pairstill.push_to_hub(sets / "mdm", "me/x", endpoint=hub)
    assert Hub.files == {}
