"""What lies in the folder that is served, and nothing outside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pairstill.sets.run_record import RunRecord, is_run, read_run_record, scores_of

DEPTH = 3
"""How far below the folder runs, students and prepared data are looked for."""


@dataclass(frozen=True)
class ServedFolder:
    """A folder and what is below it, by paths relative to it."""

    root: Path

    def inside(self, name: str) -> Path | None:
        """The folder of that name, or None if there is none, or it lies outside."""
        path = (self.root / name).resolve()
        return path if path.is_relative_to(self.root.resolve()) and path.is_dir() else None

    def name(self, path: Path) -> str:
        """The reverse: `.` for the folder itself."""
        return path.resolve().relative_to(self.root.resolve()).as_posix()

    def runs(self) -> list[str]:
        """Sets, finished and in the making."""
        return self._folders(is_run)

    def students(self) -> list[str]:
        """Saved students."""
        return self._folders(lambda path: (path / "student.json").exists())

    def prepared(self) -> list[str]:
        """Prepared datasets."""
        return self._folders(lambda path: (path / "prepared.json").exists())

    def view(self, name: str) -> RunRecord | None:
        """A run by its name."""
        path = self.inside(name)
        return read_run_record(path, name if name != "." else None) if path is not None and is_run(path) else None

    def _folders(self, wanted: Callable[[Path], bool]) -> list[str]:
        found, level = list[Path](), [self.root]
        for _ in range(DEPTH + 1):
            found += [path for path in level if wanted(path)]
            level = [child for path in level if not is_run(path) for child in _children(path)]
        return sorted(self.name(path) for path in found)


def _children(path: Path) -> list[Path]:
    try:
        return sorted(child for child in path.iterdir() if child.is_dir() and not child.is_symlink())
    except OSError:
        return []


def progress_of(run: RunRecord) -> dict[str, object]:
    """How far a run is: iterations done and asked for, seconds so far, and seconds left if that can be told."""
    steps = [step for step in run.of_kind("step") if "iteration" in step]
    plans = run.of_kind("plan") or [run.config.get("settings", {})]
    total = plans[-1].get("iterations")
    done = steps[-1]["iteration"] if steps else 0
    seconds = run.events[-1]["seconds"] if run.events else 0.0
    left = None
    if total and steps and not run.finished:
        begin = run.of_kind("check")[0]["seconds"] if run.of_kind("check") else 0.0
        left = (seconds - begin) / done * (total - done)
    rows = scores_of([run])
    return {
        "name": run.name,
        "method": run.config.get("method"),
        "pairs": run.config.get("pairs"),
        "finished": run.finished,
        "done": done,
        "total": total,
        "seconds": round(seconds),
        "left": None if left is None else round(left),
        "score": rows[-1] if rows else None,
    }
