"""The local page, served to a test."""

import threading
import time
import urllib.error
import urllib.request

import uvicorn

from pairstill.show.serve.app import build_app
from pairstill.show.serve.server import HERE


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
