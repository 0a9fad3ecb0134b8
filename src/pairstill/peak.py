"""The most memory that this process had resident."""

from __future__ import annotations

from pathlib import Path


def peak_mib() -> int | None:
    """In MiB, where the system tells. The process's own: `ru_maxrss` begins at what its parent held when it forked."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    kilobytes = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return round(int(kilobytes[0]) / 1024) if kilobytes else None
