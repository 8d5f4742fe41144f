"""Leases as the times of small files: one for each token, touched at each renewal.

A renewal is no commit, and takes one call. If the store uses the machine's clock, the times are the file system's own,
so that machines whose clocks differ agree on them.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from milepost.model.ids import Clock, SystemClock

__all__ = ["Leases"]

_MEASURED = 10.0
"""Seconds for which a measured difference between the two clocks is used."""
_SAME = 0.1
"""Seconds within which the two clocks count as one: a file system's time goes by ticks, and its answer takes a while."""


class Leases:
    """The lease files of a store. `probe` is a file that is touched to read the file system's time."""

    def __init__(self, clock: Clock, probe: str) -> None:
        self._clock = clock
        self._has_machine_time = isinstance(clock, SystemClock)
        self._probe = probe
        self._ahead = 0.0
        self._measured_at = float("-inf")

    @property
    def slack(self) -> float:
        """Seconds by which a renewal may seem to lie ahead and still count as now: times are read one after another."""
        return 1.0 if self._has_machine_time else 1e-5

    def path(self, folder: str, epoch: int) -> str:
        """Return the file of a token. A run has one token per epoch."""
        return f"{folder}/lease-{epoch}"

    def renew(self, path: str) -> None:
        """Begin a lease, or renew it."""
        try:
            self._touch(path)
        except FileNotFoundError:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            self._touch(path)

    def renewed_at(self, path: str) -> float | None:
        """Return when a lease was last renewed, in POSIX seconds of the store's clock; None if there is no such file."""
        try:
            moment = os.stat(path).st_mtime_ns
        except FileNotFoundError:
            return None
        return round(moment / 1000) / 1e6 - self._difference()

    def _touch(self, path: str) -> None:
        if self._has_machine_time:
            os.utime(path)
        else:
            moment = round(self._clock.time() * 1e6) * 1000
            os.utime(path, ns=(moment, moment))

    def _difference(self) -> float:
        """Return the seconds by which the file system's time is ahead of this machine's."""
        if not self._has_machine_time:
            return 0.0
        now = time.monotonic()
        if now - self._measured_at > _MEASURED:
            self._measured_at = now
            with suppress(OSError):
                self.renew(self._probe)
                ahead = os.stat(self._probe).st_mtime_ns / 1e9 - self._clock.time()
                self._ahead = 0.0 if abs(ahead) < _SAME else ahead
        return self._ahead
