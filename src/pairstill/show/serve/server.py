"""Start the page: on this machine, or elsewhere behind a token."""

from __future__ import annotations

import ipaddress
import secrets
from pathlib import Path

from pairstill.errors import PairstillError
from pairstill.runtime.progress import console

HERE = ["127.0.0.1", "localhost", "[::1]"]


def serve(folder: Path, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve a folder until Ctrl-C."""
    try:
        import uvicorn

        from pairstill.show.serve.app import build_app
    except ImportError as error:
        raise PairstillError(f"the page needs {error.name}: pip install 'pairstill[serve]'.") from None
    if not folder.is_dir():
        raise PairstillError(f"{folder} is not a folder.")
    local = is_loopback(host)
    token = None if local else secrets.token_urlsafe(24)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{port}/" + (f"?token={token}" if token else "")
    console.print(f"{folder} is at {address}  (Ctrl-C ends it)", soft_wrap=True, markup=False)
    if token:
        console.print("anyone who has this address can look; it changes at every start", soft_wrap=True)
    try:
        uvicorn.run(build_app(folder, token, HERE if local else None), host=host, port=port, log_level="warning")
    except SystemExit as error:
        if error.code:
            raise PairstillError(
                f"port {port} on {host} could not be opened: is it in use? Choose another --port."
            ) from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
