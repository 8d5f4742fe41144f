"""How a process waits while another one writes to the same SQLite file.

SQLite's own wait looks again after one, two, five and at last a hundred milliseconds, so who has waited long waits longest.
Here nobody sleeps longer than ten. Nor does anybody look more often than every two milliseconds: looks take time from
whoever writes, and a process that commits several times in a row reads less of what others changed.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["BUSY_SECONDS", "patiently"]

BUSY_SECONDS = 10.0
"""How long anything waits for the lock of a file until it is an error."""

_SHORTEST = 0.002
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
