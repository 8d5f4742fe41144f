"""The process that does one work with one system: `python -m benchmarks.peers.child WORK SYSTEM TASK FACTS`.

FACTS is JSON: where runs are kept, how many steps. What came out is written as one line of JSON.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.children import peak, tell, wait
from benchmarks.peers.peer import Peer, Place
from benchmarks.peers.systems import SYSTEMS
from benchmarks.peers.tasks import TASKS, Turn
from benchmarks.raw import size_on_disk

__all__ = []

_PATIENCE = 600
"""Seconds."""


def _unsaved(peer: Peer, place: Place, times: int) -> None:
    """Steps without a store."""
    peer.prepare(None, times)
    peer.unsaved(times)
    assert len(peer.turn.stamps) == times
    tell(seconds=peer.turn.per_step())


def _run(peer: Peer, place: Place, run_id: str, times: int) -> None:
    """One run, and what it leaves on the disk."""
    with peer.opened(place) as store:
        peer.prepare(store, times)
        peer.run(store, run_id, times)
        settings = peer.settings(store)
    assert len(peer.turn.stamps) == times
    size = size_on_disk(Path(place.path)) if place.path else 0
    tell(seconds=peer.turn.per_step(), size=size, peak=peak(), settings=settings)


def _together(peer: Peer, place: Place, run_ids: list[str], times: int) -> None:
    """Runs side by side in this process."""
    with peer.opened(place) as store:
        peer.prepare(store, times)
        began = perf_counter()
        peer.together(store, run_ids, times)
        ended = perf_counter()
    assert len(peer.turn.stamps) == times * len(run_ids)
    tell(rate=len(peer.turn.stamps) / (ended - began))


def _beside(peer: Peer, place: Place, run_id: str, times: int) -> None:
    """One run beside those of other processes; it may be lost."""
    with peer.opened(place) as store:
        peer.prepare(store, times)
        wait()
        began, lost = perf_counter(), ""
        try:
            peer.run(store, run_id, times)
        except Exception as exc:
            lost = f"{type(exc).__name__}: {exc}"
        ended = perf_counter()
        tell(began=began, ended=ended, done=len(peer.turn.stamps), lost=lost)
        os._exit(0)  # what threads still wait for is not waited for


def _interrupted(peer: Peer, place: Place, run_id: str, times: int) -> None:
    """A run that dies when it has done all but one of its steps."""
    peer.turn.stop, peer.turn.at_stop = times - 1, peer.die
    with suppress(Exception), peer.opened(place) as store:
        peer.prepare(store, times)
        peer.run(store, run_id, times)


def _resumed(peer: Peer, place: Place, run_id: str, times: int, warm_run_id: str | None = None) -> None:
    """Seconds until the last step of such a run begins, where it dies again."""
    began = 0.0

    def reached() -> None:
        tell(seconds=perf_counter() - began)
        peer.die()

    if peer.resumes_when_opened:
        peer.turn.stop, peer.turn.at_stop = times - 1, reached
        began = perf_counter()
        with peer.opened(place):
            threading.Event().wait(60)
    with suppress(Exception), peer.opened(place) as store:
        if warm_run_id:
            peer.prepare(store, 3)
            peer.warm_up(store, warm_run_id, 3)
        peer.prepare(store, times)
        peer.turn.stop, peer.turn.at_stop = times - 1, reached
        began = perf_counter()
        peer.resume(store, run_id, times)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(_PATIENCE, exit=True)  # a system that hangs must not hold up the others
    work, system, task, told = sys.argv[1:]
    works: dict[str, Callable[..., None]] = {
        "unsaved": _unsaved,
        "run": _run,
        "together": _together,
        "beside": _beside,
        "interrupted": _interrupted,
        "resumed": _resumed,
    }
    facts: dict[str, Any] = json.loads(told)
    works[work](SYSTEMS[system].load(Turn(TASKS[task])), Place(**facts.pop("place", {})), **facts)
