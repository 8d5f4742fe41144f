"""The processes under torture: what is done to them, and what their log says while they live."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.children import environment
from benchmarks.torture.checking import Disturbance, Fault
from benchmarks.torture.work import Task

__all__ = ["Crew", "Worker"]

_PATIENCE = 60.0
"""Seconds without any call of a node after which the ordeal ends, whatever has become of the runs."""
_FAILURES = 10
"""How many workers may end by themselves before the ordeal ends."""
_CALLS = 5
"""How often as many nodes may be called as there are before the ordeal ends."""


class Worker:
    """One worker process."""

    def __init__(self, kind: str, task: Task, errors: Path) -> None:
        self.kind = kind
        self._errors = errors
        with errors.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.torture.work", kind, task.to_json()],
                env=environment(),
                stderr=file,
            )
        self.pid = self._process.pid
        self._frozen_at: float | None = None
        self._length = 0.0
        self._runs: set[str] = set()
        """Those of which it called a node last when it was frozen, if it shall wait until another one does."""

    @property
    def is_frozen(self) -> bool:
        return self._frozen_at is not None

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def status(self) -> int:
        """With which it ended."""
        return self._process.wait()

    def last_words(self) -> str:
        """The last line of what it complained of."""
        return self._errors.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2][-500:]

    def freeze(self, length: float, runs: set[str]) -> None:
        """Stop it for `length` seconds and, if there are `runs`, until another process has gone on with one of them."""
        self._length, self._runs = length, runs
        self._frozen_at = time.time()
        self._process.send_signal(signal.SIGSTOP)

    def is_done_freezing(self, pid_of: Mapping[str, int]) -> bool:
        """Whether it has been frozen for as long as it should; `pid_of` is who called a node of each run last."""
        if self._frozen_at is None:
            return False
        passed = time.time() - self._frozen_at
        is_awaited = bool(self._runs) and all(pid_of[run_id] == self.pid for run_id in self._runs)
        return passed >= self._length and (not is_awaited or passed >= 2 * self._length)

    def thaw(self) -> Disturbance:
        """Let it go on; what was done to it."""
        assert self._frozen_at is not None
        began, self._frozen_at = self._frozen_at, None
        self._process.send_signal(signal.SIGCONT)
        return Disturbance("freeze", self.pid, began, time.time())

    def kill(self) -> list[Disturbance]:
        """End it, frozen or not; what was done to it."""
        began = time.time()
        self._process.kill()
        self._process.wait()
        done = [Disturbance("kill", self.pid, began, time.time())]
        if self._frozen_at is not None:
            done.append(Disturbance("freeze", self.pid, self._frozen_at, began))
        return done


class Crew:
    """All workers, what was done to them, and what they do."""

    def __init__(self, task: Task, processes: int, verbs: int, folder: Path) -> None:
        self._task = task
        self._folder = folder
        self._started = 0
        self._log = os.open(task.log, os.O_RDONLY | os.O_CREAT, 0o600)
        self._rest = b""
        self._pid_of: dict[str, int] = {}
        """The process that called a node of each run last."""
        self._moved_at = time.monotonic()
        self.calls = 0
        """Of nodes, in all."""
        self.disturbances: list[Disturbance] = []
        self.faults: list[Fault] = []
        kinds = ["verbs"] * verbs + ["worker"] * (processes - verbs)
        self.workers = [self._start(kind) for kind in kinds]

    def _start(self, kind: str) -> Worker:
        self._started += 1
        return Worker(kind, self._task, self._folder / f"{self._task.name}-{self._started}.err")

    def is_working(self) -> bool:
        return any(worker.is_alive() for worker in self.workers)

    def is_hopeless(self, now: float) -> bool:
        """Whether nothing moves or only in circles, or workers end by themselves again and again."""
        if now - self._moved_at > _PATIENCE:
            self.faults.append(Fault("stuck", "", f"no node was called for {_PATIENCE:g} s"))
        elif self.calls > _CALLS * self._task.runs * self._task.nodes:
            self.faults.append(Fault("stuck", "", f"nodes were called {self.calls} times, and runs have not ended"))
        else:
            return len(self.faults) >= _FAILURES
        return True

    def look(self, now: float) -> None:
        """Read what the workers logged, thaw those whose time is over, start others for those that failed."""
        *lines, self._rest = (self._rest + os.read(self._log, 1 << 20)).split(b"\n")
        for line in lines:
            kind, run_id, *words = line.decode().split(" ")
            if kind == "began":
                self._pid_of[run_id] = int(words[3])
                self.calls += 1
                self._moved_at = now
        for number, worker in enumerate(self.workers):
            if worker.is_done_freezing(self._pid_of):
                self.disturbances.append(worker.thaw())
            elif not worker.is_alive() and worker.status() != 0:
                self.faults.append(Fault("worker", "", f"ended with {worker.status()}: {worker.last_words()}"))
                self.workers[number] = self._start(worker.kind)

    def runs_of(self, worker: Worker) -> set[str]:
        """The runs of which it called a node last."""
        return {run_id for run_id, pid in self._pid_of.items() if pid == worker.pid}

    def kill(self, victim: Worker) -> None:
        """Kill a worker and start another one in its place."""
        self.disturbances += victim.kill()
        self.workers[self.workers.index(victim)] = self._start(victim.kind)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for worker in self.workers:
            if worker.is_alive():
                worker.kill()
        os.close(self._log)
