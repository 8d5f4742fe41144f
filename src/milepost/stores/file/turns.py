"""The order of writers to a run: threads of a process go one after another, processes try again."""

from __future__ import annotations

import secrets
import threading
import time

from milepost.errors import StoreError
from milepost.stores.base.transaction import WriteConflict

__all__ = ["Attempts", "Locks"]

_PATIENCE = 10.0
"""Seconds for which a change is tried again while others are faster."""
_PAUSE = 0.004
"""Longest pause in seconds before another try. Pauses make writers that collide fall out of step."""


class Locks:
    """A lock for each run that a thread of this process writes to."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    def acquire(self, run_id: str) -> None:
        """Wait until no other thread has the run's lock, and take it."""
        with self._guard:
            lock, users = self._locks.get(run_id) or (threading.Lock(), 0)
            self._locks[run_id] = (lock, users + 1)
        try:
            lock.acquire()
        except BaseException:
            self._leave(run_id)
            raise

    def release(self, run_id: str) -> None:
        """Release the run's lock."""
        self._locks[run_id][0].release()
        self._leave(run_id)

    def _leave(self, run_id: str) -> None:
        with self._guard:
            lock, users = self._locks.pop(run_id)
            if users > 1:
                self._locks[run_id] = (lock, users - 1)


class Attempts:
    """The tries of a change that others keep overtaking."""

    def __init__(self, place: str, op: str) -> None:
        self._place = place
        self._op = op
        self._number = 0
        self._deadline = 0.0

    def wait(self, overtaken: WriteConflict) -> None:
        """Pause before the next try. Raise StoreError if there were enough."""
        self._number += 1
        now = time.monotonic()
        self._deadline = self._deadline or now + _PATIENCE
        if now > self._deadline:
            raise StoreError(
                f"the store {self._place} could not {self._op.replace('_', ' ')}: others were faster {self._number} times "
                f"in a row: try again",
                store=self._place,
                op=self._op,
            ) from overtaken
        time.sleep(secrets.randbelow(1000) / 1000 * _PAUSE)
