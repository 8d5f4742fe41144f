"""The library's only source of time. It is passed in, so that tests can replace it."""

from __future__ import annotations

import threading
import time
from typing import Protocol, runtime_checkable

__all__ = ["SYSTEM", "Clock", "SystemClock"]


@runtime_checkable
class Clock(Protocol):
    """The interface that engines and stores ask for the time. `milepost.testing.FakeClock` implements it too."""

    def time(self) -> float:
        """Return POSIX seconds; they may jump in both directions."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back; they can be compared within this process only."""
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

    # Each node asks for the time several times, so these are the interpreter's own functions without a wrapper.
    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)

    def wait(self, wake: threading.Event, seconds: float) -> bool:
        """Block until `wake` is set or `seconds` have passed."""
        return wake.wait(min(seconds, threading.TIMEOUT_MAX))

    async def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        import asyncio  # whoever awaits this has imported it already

        await asyncio.sleep(seconds)


SYSTEM = SystemClock()
