"""The run folder: what was asked, what happened, and a checkpoint to go on from."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

import yaml
from torch import Tensor

from pairstill.errors import PairstillError, holds_secret
from pairstill.runtime.files import read_manifest, read_sealed, write_manifest, write_sealed, write_text
from pairstill.runtime.progress import console

_REPORTED_PACKAGES = ("pairstill", "torch", "timm", "transformers", "numpy", "faiss-cpu", "datasets")
CHECKPOINT = "checkpoint.safetensors"


class Interrupted(PairstillError):
    """The person pressed Ctrl-C; the state was saved first."""


class Run:
    """One run in one folder: `run.json`, `config.yaml`, `events.jsonl` and `checkpoint.safetensors`.

    A folder belongs to one config. Starting again in it needs `resume`, and the same config. The seconds of an event
    count the time that the run was at work, over all its sessions.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        resume: bool = False,
        read_config: Callable[[dict[str, Any]], dict[str, Any]] = dict,
    ) -> None:
        """`read_config` gives a config that an older version wrote the names of this one."""
        self.folder = folder
        self.stopping = False
        self._started, self._before = time.monotonic(), 0.0
        plain = json.loads(json.dumps(config, default=str))
        _refuse_secrets(plain)
        if (folder / "run.json").exists():
            self._continue(plain, resume, read_config)
        else:
            write_text(folder / "config.yaml", yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
            write_manifest(folder / "run.json", {"config": plain, "versions": versions(), "started": _now()})

    def _continue(
        self, config: dict[str, Any], resume: bool, read_config: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> None:
        if not resume:
            raise PairstillError(
                f"{self.folder} already holds a run. Add --resume to continue it, or choose another --out."
            )
        before, now = _flat(read_config(read_manifest(self.folder / "run.json")["config"])), _flat(config)
        changed = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
        if changed:
            lines = "; ".join(f"{key}: {before.get(key)!r} then, {now.get(key)!r} now" for key in changed)
            raise PairstillError(
                f"{self.folder} was started with other settings ({lines}). "
                "Give the same settings to resume, or choose another --out."
            )

    def event(self, kind: str, **values: Any) -> None:
        """Append one line to `events.jsonl`."""
        line = {"kind": kind, "seconds": round(self._before + time.monotonic() - self._started, 3), **values}
        path = self.folder / "events.jsonl"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise PairstillError(
                f"could not write {path}: {error.strerror or error}. Free some space and run again with --resume."
            ) from error

    def save_checkpoint(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Write tensors and small values as one file, atomically."""
        events = self.folder / "events.jsonl"
        size = events.stat().st_size if events.exists() else 0
        write_sealed(self.folder / CHECKPOINT, tensors, {**state, "events_size": size})

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The last checkpoint, or None. Events written after it are cut off: they will happen again."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            (self.folder / "events.jsonl").unlink(missing_ok=True)
            return None
        try:
            tensors, state = read_sealed(path)
        except PairstillError as error:
            raise PairstillError(f"{error} Delete it and resume to start this stage again.") from error
        events = self.folder / "events.jsonl"
        if events.exists():
            os.truncate(events, min(state.pop("events_size"), events.stat().st_size))
        self._before = max((event["seconds"] for event in read_events(self.folder)), default=0.0)
        return tensors, state

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, Ctrl-C sets `stopping`, so that the loop can save and leave; a second one stops at once."""

        def request(number: int, frame: FrameType | None) -> None:
            if self.stopping:
                raise KeyboardInterrupt
            self.stopping = True
            console.print("finishing this iteration, then saving; Ctrl-C again stops at once")

        try:
            before = signal.signal(signal.SIGINT, request)
        except ValueError:  # not the main thread: there is nothing to catch
            yield
            return
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _refuse_secrets(config: Mapping[str, Any]) -> None:
    for key, value in _flat(config).items():
        if holds_secret(str(value)):
            raise PairstillError(f"{key} holds a password or a token ({value}), and a run keeps its settings.")


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names, so that a difference can be named."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return flat


def read_events(folder: Path) -> list[dict[str, Any]]:
    """All events of a run so far; a last line cut short by a kill is left out."""
    path = folder / "events.jsonl"
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        with contextlib.suppress(json.JSONDecodeError):
            event = json.loads(line)
            if isinstance(event, dict) and isinstance(event.get("seconds"), (int, float)) and "kind" in event:
                found.append(event)
    return found


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that can change a result."""
    found = {"python": platform.python_version()}
    for package in _REPORTED_PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
