"""Writing that never leaves half a file, and hashes that say whether a file is still the one written."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import torch

from pairstill.errors import PairstillError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: nobody is kept out, and nothing is taken for left by others
    fcntl = None

SECONDS_TO_LEAVE = 3.0
"""How long a new run waits for the last processes of one that was just killed."""


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it is flushed to disk and renamed over `path`.

    Whatever goes wrong inside, `path` stays as it was and the temporary file is removed. What a writer that was killed
    left of the same file is removed too.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_left(path)
        with _claimed(path) as temporary:
            yield temporary
            temporary.chmod(0o644)
            publish(temporary, path)
    except OSError as error:
        raise PairstillError(
            f"could not write {path}: {error.strerror or error}. Nothing was changed; "
            "free some space or choose another folder, then run the same command again."
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def publish(whole: Path, path: Path) -> None:
    """Give a file that is whole its final name: what it holds is on disk before the name is."""
    with whole.open("rb+") as file:
        os.fsync(file.fileno())
    whole.replace(path)
    _sync_folder(path.parent)


@contextlib.contextmanager
def _claimed(path: Path) -> Iterator[Path]:
    """A new temporary file beside `path`, locked while it is written: no other writer takes it for a left one."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=_prefix(path), suffix=".tmp")
        if fcntl is None:
            os.close(handle)
            yield Path(name)
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if Path(name).exists():  # else another writer removed it before it was locked
                yield Path(name)
                return
        finally:
            os.close(handle)


def _prefix(path: Path) -> str:
    return f".{path.name[:40]}."


def _remove_left(path: Path) -> None:
    """Remove temporary files of `path` that nobody writes any more."""
    for left in path.parent.glob(f"{glob.escape(_prefix(path))}*.tmp"):
        with contextlib.suppress(OSError), left.open("rb") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()


def remove(path: Path) -> None:
    """Remove a file that `atomic` wrote, if it is there, and what killed writers left of it."""
    path.unlink(missing_ok=True)
    _remove_left(path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, so that processes that do the same work wait for one another.

    The system lets go of it when the process ends, however it ends. Where there are no such locks, nobody waits. The
    empty file stays: to remove it would let two others in, one with the old file and one with a new one.
    """
    with _opened(path) as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def held_alone(folder: Path) -> Iterator[None]:
    """Hold `folder` for one run; a second one, in this or another process, is refused."""
    with _opened(folder / "busy.lock") as file:
        end = time.monotonic() + SECONDS_TO_LEAVE
        while fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise PairstillError(
                        f"another run is at work in {folder}. Wait for it, or choose another --out."
                    ) from None
                time.sleep(0.1)
        yield


def _opened(path: Path) -> IO[str]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a")
    except OSError as error:
        raise PairstillError(f"could not write {path}: {error.strerror or error}. Choose another folder.") from error


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable, where the system allows folders to be opened."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file; a missing or broken one is an error that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PairstillError(f"{path} does not exist.") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise PairstillError(f"{path} is not readable JSON: {error}.") from error


def write_manifest(path: Path, value: Mapping[str, Any]) -> None:
    """Write what later commands go by as JSON, atomically, with a digest of it."""
    plain = json.loads(json.dumps(value))
    write_json(path, {**plain, "digest": digest_of(plain)})


def read_manifest(path: Path) -> dict[str, Any]:
    """Read what `write_manifest` wrote; one that was changed since is an error that names it."""
    value = read_json(path)
    if not isinstance(value, dict) or value.pop("digest", None) != digest_of(value):
        raise PairstillError(f"{path} was changed after it was written: its digest is missing or wrong.")
    return value


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors, and texts beside them, as one safetensors file, atomically."""
    from safetensors.torch import save_file

    with atomic(path) as temporary:
        try:
            plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
            save_file(plain, temporary, metadata=dict(metadata) if metadata else None)
        except OSError:
            raise
        except Exception as error:  # safetensors wraps the system's write error in its own type
            raise OSError(str(error)) from error


def write_sealed(path: Path, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
    """Write tensors and small values as one file with a checksum over all of it: what a run goes on from."""
    text = json.dumps(state)
    # One entry: safetensors writes several in an order that changes from process to process.
    write_tensors(path, tensors, {"sealed": json.dumps([_checksum(tensors, text), text])})


def read_sealed(path: Path) -> tuple[dict[str, torch.Tensor], Any]:
    """Read what `write_sealed` wrote, into memory; a file with a single bit changed is an error that names it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            checksum, text = json.loads((file.metadata() or {})["sealed"])
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        if checksum != _checksum(tensors, str(text)):
            raise PairstillError(f"{path} is damaged: its checksum differs.")
        return tensors, json.loads(text)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise PairstillError(f"{path} is damaged: {error}.") from error


def _checksum(tensors: Mapping[str, torch.Tensor], text: str) -> str:
    """CRC-32 of names, shapes, types, values and `text`: against accidents, at the speed of memory."""
    total = zlib.crc32(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total = zlib.crc32(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode(), total)
        if tensor.numel():
            total = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, total)
    return f"{total:08x}"


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read safetensors, memory-mapped; a missing or broken file is an error that names it."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except FileNotFoundError:
        raise PairstillError(f"{path} does not exist.") from None
    except (OSError, SafetensorError) as error:
        raise PairstillError(f"{path} is not a readable safetensors file: {error}.") from error


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _slow(path)
    except FileNotFoundError:
        raise PairstillError(f"{path} does not exist.") from None


def _slow(path: Path) -> str:
    """`hashlib.file_digest` for Python 3.10."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def digest_of(value: Any) -> str:
    """A short stable digest of anything JSON can hold: the key of a cache."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def digest_of_items(items: Iterable[Any]) -> str:
    """`digest_of(list(items))`, without the list and its text in memory."""
    digest = hashlib.sha256(b"[")
    for number, item in enumerate(items):
        text = json.dumps(item, sort_keys=True, ensure_ascii=False, default=str)
        digest.update(f", {text}".encode() if number else text.encode())
    digest.update(b"]")
    return digest.hexdigest()[:16]


def digest_of_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """A digest of named tensors: names, shapes, types and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()[:16]
