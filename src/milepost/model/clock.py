"""Time as the library sees it: one source, passed in, that tests can replace."""

from __future__ import annotations

import threading
import time
from typing import Protocol, runtime_checkable

__all__ = ["SYSTEM", "Clock", "SystemClock"]


@runtime_checkable
class Clock(Protocol):
    """What engines and stores ask for time. `milepost.testing.FakeClock` is the other implementation."""

    def time(self) -> float:
        """POSIX seconds; may jump in both directions."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, comparable within this process only."""
        ...

    def wait(self, wake: threading.Event, seconds: float) -> bool:
        """Block until `wake` is set (True) or `seconds` have passed (False)."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let `seconds` pass without blocking the event loop."""
        ...


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    # Asked several times for each node: functions of the interpreter's own, with no call around them.
    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)

    def wait(self, wake: threading.Event, seconds: float) -> bool:
        """Block until `wake` is set or `seconds` have passed."""
        return wake.wait(min(seconds, threading.TIMEOUT_MAX))

    async def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        import asyncio  # which is there where anybody awaits this

        await asyncio.sleep(seconds)


SYSTEM = SystemClock()
