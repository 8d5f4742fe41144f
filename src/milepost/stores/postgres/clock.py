"""A clock with the time of the database server, which is the same for all machines that share it."""

from __future__ import annotations

import asyncio
import threading

from milepost.model.ids import SYSTEM
from milepost.stores.postgres.connection import Link

_FRESH = 60.0
"""Seconds for which a reading of the server's clock is used: two quartzes differ by a few milliseconds in that time."""


class ServerClock:
    """A clock that runs at the rate of this machine's, and is set by the server's.

    It lags by the time that an answer takes, so no two machines agree to the microsecond.
    """

    def __init__(self) -> None:
        self._ahead = SYSTEM.time() - SYSTEM.monotonic()
        self._stale_at = SYSTEM.monotonic()

    def time(self) -> float:
        """Return the server's time in POSIX seconds."""
        return SYSTEM.monotonic() + self._ahead

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return SYSTEM.monotonic()

    def wait(self, wake: threading.Event, seconds: float) -> bool:
        """Block until `wake` is set or `seconds` have passed."""
        return SYSTEM.wait(wake, seconds)

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        await asyncio.sleep(seconds)

    def set_by(self, link: Link) -> None:
        """Read the server's clock if the last reading is old. Raise psycopg's errors."""
        if SYSTEM.monotonic() >= self._stale_at:
            server_time = link.server_time()
            now = SYSTEM.monotonic()
            self._ahead, self._stale_at = server_time - now, now + _FRESH
