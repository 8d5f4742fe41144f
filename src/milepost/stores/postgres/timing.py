"""A time limit on this side for each call of a PostgreSQL server.

Where bytes vanish between here and the server, a call gets no answer and no error, and libpq waits for ever. One daemon
thread of the process watches the calls that are under way. It shuts down the socket of one that is overdue: libpq then
returns as if the server had gone.
"""

from __future__ import annotations

import math
import socket
import threading
import time
import weakref
from contextlib import suppress

from milepost.model.ids import in_forked_child

_SLACK = 1.2
"""Factor by which a call may take longer here than in the server: while the server answers, it ends a long call itself."""
_LOOKS = 10
"""Number of times that the thread looks at a call within its time."""


class CallTimer:
    """The time that each call over one connection may take. As a context manager it times one call."""

    __slots__ = ("__weakref__", "_ends_at", "_limit", "_socket", "is_over")

    def __init__(self, descriptor: int, patience: float) -> None:
        # A descriptor of our own: libpq closes its own at any time, and the number may then belong to somebody else.
        self._socket = socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM)
        self._ends_at = math.inf
        self.is_over = False
        """True if a call took too long, and the connection was shut down."""
        self.allow(patience)
        _overseer.add(self)

    def allow(self, patience: float) -> None:
        """Limit each later call to a little more than the `patience` seconds that the server has for it."""
        self._limit = _SLACK * patience

    def start(self) -> None:
        """Note that a call begins."""
        self._ends_at = time.monotonic() + self._limit

    def stop(self) -> None:
        """Note that the call has ended."""
        self._ends_at = math.inf

    def hurry(self, seconds: float) -> None:
        """Limit the call that is under way, and each later one, to `seconds`."""
        self._limit = min(self._limit, seconds)
        self._ends_at = min(self._ends_at, time.monotonic() + seconds)
        _overseer.wake()

    def look(self, now: float) -> float:
        """Shut the connection down if its call is overdue. Return the seconds until the next look."""
        if now >= self._ends_at:
            self.is_over = True
            self._ends_at = math.inf
            with suppress(OSError):  # it has ended by itself
                self._socket.shutdown(socket.SHUT_RDWR)
        return self._limit / _LOOKS

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __del__(self) -> None:
        with suppress(AttributeError):  # it was never made
            self._socket.close()


class _Overseer:
    """A thread that watches all timers of this process, as long as there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._timers: weakref.WeakSet[CallTimer] = weakref.WeakSet()
        self._is_running = False
        self._wake = threading.Event()

    def add(self, timer: CallTimer) -> None:
        with self._lock:
            self._timers.add(timer)
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="milepost-postgres", daemon=True).start()
        self._wake.set()

    def wake(self) -> None:
        """Look now: a limit has become shorter."""
        self._wake.set()

    def _run(self) -> None:
        while (pause := self._look()) is not None:
            self._wake.wait(pause)
            self._wake.clear()

    def _look(self) -> float | None:
        """Look at all timers. Return the seconds until the next look; None: no timer is left."""
        with self._lock:
            timers = [*self._timers]
            self._is_running = bool(timers)
        now = time.monotonic()
        return min((timer.look(now) for timer in timers), default=None)


_overseer = _Overseer()
in_forked_child(_overseer.__init__)  # type: ignore[misc]
