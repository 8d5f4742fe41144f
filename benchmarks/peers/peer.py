"""What a system is asked to do: the works of every file beside this one. What a library has nothing for is left out."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.tasks import Turn

__all__ = ["Peer", "Place", "in_threads", "pragmas"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where runs are kept. One of `path` (SQLite) and `dsn` (PostgreSQL) is given."""

    path: str = ""
    dsn: str = ""
    as_it_comes: bool = False
    """With the library's own defaults; else durable, and SQLite with journal_mode=WAL and synchronous=FULL."""
    owner: str = "local"
    """The process, where several work on one place."""


class Peer:
    """One system. `turn` is what its steps call."""

    resumes_when_opened = False
    """Whether a run that was interrupted goes on as soon as the place is opened, without being asked to."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.task = turn.task

    def unsaved(self, times: int) -> None:
        """Do `times` steps and keep nothing."""
        raise NotImplementedError

    @contextmanager
    def opened(self, place: Place) -> Iterator[Any]:
        """What the other works are given as `store`."""
        raise NotImplementedError
        yield

    def prepare(self, store: Any, times: int) -> None:
        """Define what runs of `times` steps do, as a program does when it starts; None: nothing is kept."""

    def settings(self, store: Any) -> str:
        """How the store is set, as the store itself tells."""
        raise NotImplementedError

    def run(self, store: Any, run_id: str, times: int) -> None:
        """Do `times` steps, each durable before the next begins; `times` is what was prepared."""
        raise NotImplementedError

    def warm_up(self, store: Any, run_id: str, times: int) -> None:
        """Do a run beforehand, so that nothing which follows is done for the first time."""
        self.run(store, run_id, times)

    def resume(self, store: Any, run_id: str, times: int) -> None:
        """Go on with a run of `times` steps."""
        raise NotImplementedError

    def together(self, store: Any, run_ids: list[str], times: int) -> None:
        """Do runs of `times` steps side by side in this process."""
        in_threads([lambda run_id=run_id: self.run(store, run_id, times) for run_id in run_ids])

    def die(self) -> None:
        """End as a process that crashes."""
        os.kill(os.getpid(), signal.SIGKILL)


def in_threads(works: list[Callable[[], Any]]) -> None:
    """Do all of `works`, each in a thread; raises what the first of them to fail raised."""
    failed: list[BaseException] = []

    def attempt(work: Callable[[], Any]) -> None:
        try:
            work()
        except BaseException as exc:
            failed.append(exc)

    threads = [threading.Thread(target=attempt, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def pragmas(execute: Callable[[str], Any]) -> str:
    """What SQLite is set to on a connection whose `execute` gives a cursor."""
    found = {name: execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")}
    levels = ("OFF", "NORMAL", "FULL", "EXTRA")
    return f"journal_mode={found['journal_mode'].upper()} synchronous={levels[found['synchronous']]}"
