"""A clock that stands still until a test moves it.

Like a machine it has two times: `time()` is the wall clock, which `set` may put back; `monotonic()` only goes forward,
by `advance`. Threads and tasks that wait or sleep wait for the second one.

It reads the real time for one thing only: a thread that waits for an event looks at that event every few milliseconds,
because a `threading.Event` cannot notify a third party that it was set.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

from milepost.drivers.heartbeat import heartbeat
from milepost.errors import shown

__all__ = ["FakeClock"]

START = datetime(2026, 1, 1, tzinfo=UTC)
_POSIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LOOK = 0.005
"""Real seconds between two looks at the event that a thread waits for."""


def fake_entropy(size: int) -> bytes:
    """Return the same bytes each time: `entropy=` of a store whose runs are to draw the same numbers in each test."""
    return bytes(size)


class _Sleeper:
    """One thread or task that waits until `until` microseconds have passed."""

    __slots__ = ("future", "until")

    def __init__(self, until: float, future: asyncio.Future[None] | None = None) -> None:
        self.until = until
        self.future = future


class FakeClock:
    """A clock for tests: `FakeClock()` starts at 2026-01-01 UTC and stands still until `advance` or `set`.

    Give it to an engine (`clock=`) and to its store. It is thread-safe; sleepers may live in any event loop.
    """

    def __init__(self, start: datetime = START) -> None:
        """Begin at `start`. Raise ValueError if it has no zone."""
        self._moved = threading.Condition()
        # Whole microseconds, so that ten advances by 0.1 are one second.
        self._wall = _microseconds(start)
        self._passed = 0
        self._woken = 0  # the time up to which sleepers were woken: less than `_passed` while hooks run
        self._sleepers: list[_Sleeper] = []
        self.on_advance: list[Callable[[], None]] = [heartbeat.beat]
        """The functions that `advance` calls, in order, after time has moved and before any sleeper wakes.

        A process that lives through the time that passes renews its leases, so only a frozen or dead owner loses them.
        """

    def time(self) -> float:
        """Return POSIX seconds. They go back when `set` puts the clock back."""
        with self._moved:
            return self._wall / 1e6

    def monotonic(self) -> float:
        """Return the seconds by which `advance` has moved the clock since it was made."""
        with self._moved:
            return self._passed / 1e6

    def now(self) -> datetime:
        """Return the time as an aware UTC datetime."""
        return datetime.fromtimestamp(self.time(), UTC)

    def advance(self, seconds: float | timedelta = 0.0, **units: float) -> None:
        """Let time pass: `advance(1.5)`, `advance(days=30)`, `advance(timedelta(hours=1))`.

        `units` are keywords of `timedelta`. On return every sleeper whose time has come is woken, though it may not
        have run yet. Raise ValueError, with nothing changed, if the time is negative.
        """
        passed = seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
        span = (passed + timedelta(**units)) // _MICROSECOND
        if span < 0:
            raise ValueError(f"cannot advance by {span / 1e6} seconds: time only goes on, use set() to put it back")
        with self._moved:
            self._wall += span
            self._passed += span
        try:
            for hook in tuple(self.on_advance):
                hook()
        finally:
            self._wake()

    def set(self, moment: datetime) -> None:
        """Set the wall clock to `moment`, forwards or back. Raise ValueError if `moment` has no zone.

        This is a correction, not time that passes: `monotonic()` stays, and nobody wakes.
        """
        with self._moved:
            self._wall = _microseconds(moment)

    def wait(self, wake: threading.Event, seconds: float) -> bool:
        """Block until `wake` is set (True) or `seconds` of this clock have passed (False).

        It notices an advance at once, the event within 5 ms of real time.
        """
        with self._moved:
            sleeper = _Sleeper(self._passed + _rounded(seconds))
            with self._asleep(sleeper):
                while not wake.is_set() and self._woken < sleeper.until:
                    self._moved.wait(_LOOK)
        return wake.is_set()

    async def sleep(self, seconds: float) -> None:
        """Return once `seconds` of this clock have passed. At most 0 gives others one turn."""
        span = _rounded(seconds)
        if span <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._moved:
            sleeper = _Sleeper(self._passed + span, future)
            self._add(sleeper)
        try:
            await future
        finally:
            with self._moved:
                self._remove(sleeper)

    @property
    def sleepers(self) -> int:
        """The number of threads and tasks that wait for this clock now."""
        with self._moved:
            return sum(self._woken < sleeper.until for sleeper in self._sleepers)

    def wait_for_sleepers(self, n: int, timeout: float = 30.0) -> None:
        """Block until at least `n` sleepers wait, so that an advance reaches them.

        Raise TimeoutError after `timeout` real seconds. Call it from a coroutine by `asyncio.to_thread`, because the
        sleepers of a blocked loop cannot begin to sleep.
        """
        with self._moved:
            if not self._moved.wait_for(lambda: self.sleepers >= n, timeout):
                raise TimeoutError(f"{self.sleepers} of {n} sleepers wait for the clock after {timeout} seconds")

    @contextmanager
    def _asleep(self, sleeper: _Sleeper) -> Iterator[None]:
        self._add(sleeper)
        try:
            yield
        finally:
            self._remove(sleeper)

    def _add(self, sleeper: _Sleeper) -> None:
        self._sleepers.append(sleeper)
        self._moved.notify_all()

    def _remove(self, sleeper: _Sleeper) -> None:
        self._sleepers.remove(sleeper)

    def _wake(self) -> None:
        with self._moved:
            self._woken = self._passed
            due = [sleeper for sleeper in self._sleepers if sleeper.until <= self._woken]
            self._moved.notify_all()
        for sleeper in sorted(due, key=lambda sleeper: sleeper.until):
            if sleeper.future is not None:
                with suppress(RuntimeError):  # its loop was closed while it slept
                    sleeper.future.get_loop().call_soon_threadsafe(_resolve, sleeper.future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _rounded(seconds: float) -> float:
    """Round seconds to whole microseconds; infinity is allowed."""
    return round(seconds * 1e6, 0)


def _microseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise ValueError(f"time {shown(moment)} has no zone: give an aware datetime")
    return (moment - _POSIX_EPOCH) // _MICROSECOND
