"""Launch: the same tasks in this process, in local processes, or on a Ray cluster.

A task leaves its results in files and, started again, goes on from what is there. So a worker that dies is started
again, and whoever launched the tasks may die as well: the next launch finds what was done.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal, Protocol

from pairstill.errors import PairstillError
from pairstill.runtime.progress import console
from pairstill.runtime.run_folder import Interrupted

TRIES = 3
"""How often a task is started whose workers die; one that fails is not started again."""

INTERRUPTED = 130

LauncherName = Literal["local", "ray"]


@dataclass(frozen=True)
class Task:
    """A function of a module, and what to call it with; `alone` in a process that does nothing before or after it."""

    name: str
    do: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    alone: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a task returned, or why it failed."""

    task: Task
    value: Any = None
    error: str | None = None

    def result(self, kept: str = "") -> Any:
        """The value; a failure is an error that names the task, and says what is `kept`."""
        if self.error:
            raise PairstillError(f"{self.task.name}: {self.error} {kept}".rstrip())
        return self.value


def _nothing(task: Task) -> None:
    pass


class Launcher(Protocol):
    """Runs tasks, in whatever order, and yields the outcome of each as it comes."""

    def run(self, tasks: Sequence[Task], started: Callable[[Task], None] = _nothing) -> Iterator[Outcome]:
        """`started` hears of tasks that begin, where that is known."""
        ...


def launcher_named(name: LauncherName, jobs: int = 1, address: str | None = None) -> Launcher:
    """The launcher of the command line's options."""
    if jobs < 1:
        raise PairstillError(f"--jobs must be at least 1, not {jobs}.")
    if name == "ray":
        return OnRay(jobs, address)
    if address:
        raise PairstillError("--address is that of a Ray cluster: add --launcher ray.")
    return Processes(jobs)


class InProcess:
    """One task after another, in this process."""

    def run(self, tasks: Sequence[Task], started: Callable[[Task], None] = _nothing) -> Iterator[Outcome]:
        """See `Launcher`."""
        for task in tasks:
            started(task)
            yield _attempt(task)


def in_process_if_one(launcher: Launcher) -> Launcher:
    """`Here` for processes one at a time: tasks that need no process of their own then read the data once."""
    return InProcess() if launcher == Processes(at_once=1) else launcher


@dataclass(frozen=True)
class Processes:
    """Tasks in `at_once` processes, which share this process's threads and stay for the next task."""

    at_once: int = 1

    def run(self, tasks: Sequence[Task], started: Callable[[Task], None] = _nothing) -> Iterator[Outcome]:
        """See `Launcher`. When this process is stopped, the tasks are: each saves its state first."""
        waiting, busy, idle = deque((task, 1) for task in tasks), list[_Busy](), list[_Worker]()
        try:
            while waiting or busy:
                begun = [waiting.popleft() for _ in range(min(len(waiting), self.at_once - len(busy)))]
                workers = [self._worker(task, idle) for task, _ in begun]  # all start before the first is waited for
                for (task, tries), worker in zip(begun, workers, strict=True):
                    worker.give(task)
                    busy.append(_Busy(task, tries, worker))
                    if tries == 1:
                        started(task)
                ended = wait([one.worker.pipe for one in busy])
                for one in [one for one in busy if one.worker.pipe in ended]:
                    busy.remove(one)
                    outcome = one.outcome()
                    if outcome is not None:
                        idle.append(one.worker)
                        yield outcome
                    elif one.tries < TRIES:
                        console.print(f"[yellow]note:[/] {one.task.name}: {one.worker.how()}; it is started again")
                        waiting.appendleft((one.task, one.tries + 1))
                    else:
                        yield Outcome(one.task, error=one.worker.how())
        finally:
            for one in busy:
                one.worker.interrupt()
            for worker in [*idle, *(one.worker for one in busy)]:
                worker.end()

    def _worker(self, task: Task, idle: list[_Worker]) -> _Worker:
        """One that has nothing to do, or a new one; for a task that is to be alone always a new one."""
        if idle and not task.alone:
            return idle.pop()
        while idle and task.alone:
            idle.pop().end()
        return _Worker.start(self._threads())

    def _threads(self) -> int | None:
        import torch

        return max(1, torch.get_num_threads() // self.at_once) if self.at_once > 1 else None


@dataclass(frozen=True)
class _Busy:
    """A task, how often it was begun, and the worker that has it."""

    task: Task
    tries: int
    worker: _Worker

    def outcome(self) -> Outcome | None:
        """What the worker answered; None if it died without a word."""
        try:
            value, error = self.worker.pipe.recv()
            return Outcome(self.task, value, error)
        except (EOFError, ConnectionError):
            self.worker.process.join()
            if self.worker.process.exitcode == INTERRUPTED:
                raise KeyboardInterrupt from None
            return None


@dataclass(frozen=True)
class _Worker:
    """A process that does one task after another."""

    process: BaseProcess
    pipe: Connection

    @classmethod
    def start(cls, threads: int | None) -> _Worker:
        spawn = multiprocessing.get_context("spawn")
        pipe, theirs = spawn.Pipe()
        process = spawn.Process(target=_in_child, args=(theirs, threads))
        process.start()
        theirs.close()
        return cls(process, pipe)

    def give(self, task: Task) -> None:
        """Send it a task; that it died meanwhile will be seen when its answer is waited for."""
        with contextlib.suppress(ConnectionError):
            self.pipe.send(task)

    def how(self) -> str:
        """How a process that died did so."""
        code = self.process.exitcode or 0
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"its process was killed by signal {-code}{hint}" if code < 0 else f"its process ended with code {code}"

    def interrupt(self) -> None:
        if self.process.is_alive() and self.process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGINT)

    def end(self) -> None:
        """Give it no more tasks, and wait until it has gone."""
        self.pipe.close()
        self.process.join()


def _in_child(pipe: Connection, threads: int | None) -> None:
    os.setpgrp()  # Ctrl-C goes to the parent, which passes it on, once
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts with it ignored
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    if threads:
        _share(threads)
    try:
        while True:
            pipe.send(_answer(pipe.recv()))
    except (EOFError, ConnectionError):  # there are no more tasks
        return
    except (KeyboardInterrupt, Interrupted):
        sys.exit(INTERRUPTED)


def _stop_with_parent() -> None:
    """When the parent is gone, however it went, save and end as on Ctrl-C."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGINT)


def _share(threads: int) -> None:
    """Take no more than a share of the cores, and leave the screen alone: bars would be drawn over one another."""
    import torch

    torch.set_num_threads(threads)
    console.quiet = True


def _attempt(task: Task) -> Outcome:
    """Do a task; what is wrong with its input becomes its outcome, a person's Ctrl-C does not, nor does a bug."""
    try:
        return Outcome(task, task.do(*task.arguments))
    except Interrupted:
        raise
    except PairstillError as error:
        return Outcome(task, error=str(error))


def _answer(task: Task) -> tuple[Any, str | None]:
    """What another process tells of a task: its value, or why it failed, a bug included."""
    try:
        outcome = _attempt(task)
        return outcome.value, outcome.error
    except Interrupted:
        raise
    except Exception as error:
        traceback.print_exc()
        return None, f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class OnRay:
    """Tasks on a Ray cluster, about `at_once` at a time: each asks for so large a share of its processors.

    Without an address, RAY_ADDRESS or this machine's own cluster is taken, or a new one is started here. Folders must
    have the same paths on every node, and pairstill must be installed there.
    """

    at_once: int = 1
    address: str | None = None

    def run(self, tasks: Sequence[Task], started: Callable[[Task], None] = _nothing) -> Iterator[Outcome]:
        """See `Launcher`. Ray itself starts a task again whose worker or node dies."""
        ray = _ray()
        self._connect(ray)
        total = ray.cluster_resources()
        threads, gpus = max(1, int(total.get("CPU", 1)) // self.at_once), total.get("GPU", 0) / self.at_once
        asked = {"num_cpus": threads, "num_gpus": min(1, gpus), "max_retries": TRIES - 1}
        remote = {alone: ray.remote(**asked, max_calls=int(alone))(_on_worker) for alone in (False, True)}
        pending = {remote[task.alone].remote(task.do, task.arguments, threads): task for task in tasks}
        try:
            while pending:
                (ready, *_), _ = ray.wait(list(pending))
                task = pending.pop(ready)
                try:
                    value, error = ray.get(ready)
                    yield Outcome(task, value, error)
                except ray.exceptions.RayTaskError as trouble:  # before our code had a say: an import that failed there
                    last_line = str(trouble).strip().splitlines()[-1]
                    yield Outcome(task, error=f"its worker could not begin it: {last_line}")
                except ray.exceptions.RayError as trouble:
                    first_line = str(trouble).strip().splitlines()[0]
                    yield Outcome(task, error=f"its worker was lost {TRIES} times: {first_line}")
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)

    def _connect(self, ray: Any) -> None:
        if ray.is_initialized():
            return
        try:
            ray.init(address=self.address, log_to_driver=False, logging_level="error", configure_logging=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            where = self.address or os.environ.get("RAY_ADDRESS", "this machine")
            raise PairstillError(f"there is no Ray cluster at {where}: {error}") from error


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise PairstillError("--launcher ray needs Ray: pip install 'pairstill[ray]'.") from None
    return ray


def _on_worker(do: Callable[..., Any], arguments: tuple[Any, ...], threads: int) -> tuple[Any, str | None]:
    """What runs on the cluster."""
    _share(threads)
    return _answer(Task("", do, arguments))
