"""How a process waits while another one writes to the same SQLite file.

SQLite's own wait looks again after one, two, five and at last a hundred milliseconds. A commit takes a fraction of the
first of these: who waited so long found the lock taken again, and while all waited so nobody wrote. So who waits looks
often at first, for about as long as a few commits take, and then less and less often.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["BUSY_SECONDS", "patiently"]

BUSY_SECONDS = 10.0
"""How long anything waits for the lock of a file until it is an error."""

_SHORTEST = 0.000_05
_LONGEST = 0.01
"""Seconds between two looks."""
_LOOKS = 64
"""How often it is looked again while the wait doubles."""

T = TypeVar("T")


def patiently(act: Callable[..., T], *args: Any) -> T:
    """`act(*args)`, again and again while the database is locked. Raises what `act` does, at last that it is locked."""
    try:
        return act(*args)
    except sqlite3.OperationalError as exc:
        if not _is_locked(exc):
            raise
    began = time.monotonic()
    while True:
        waited = time.monotonic() - began
        time.sleep(min(max(waited / _LOOKS, _SHORTEST), _LONGEST))
        try:
            return act(*args)
        except sqlite3.OperationalError as exc:
            if not _is_locked(exc) or waited > BUSY_SECONDS:
                raise


def _is_locked(exc: sqlite3.OperationalError) -> bool:
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
