"""How a process waits for the lock of a SQLite file."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from milepost.stores import sqlite_waiting
from milepost.stores.sqlite_waiting import patiently


class Locked:
    """Locked for as many looks as given; notes how long each pause before the next was meant to be."""

    def __init__(self, looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks = looks
        self.now = 0.0
        self.pauses: list[float] = []
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def __call__(self, value: str) -> str:
        self.looks -= 1
        if self.looks >= 0:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY_SNAPSHOT
            raise error
        return value


def test_what_is_free_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    locked = Locked(0, monkeypatch)
    assert "done" == patiently(locked, "done")
    assert [] == locked.pauses


def test_who_waits_looks_after_two_milliseconds_and_then_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    locked = Locked(1000, monkeypatch)
    assert "done" == patiently(locked, "done")
    assert 0.002 == locked.pauses[0]
    assert sorted(locked.pauses) == locked.pauses
    assert 0.01 == locked.pauses[-1]


def test_nobody_waits_longer_than_the_busy_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    locked = Locked(1_000_000, monkeypatch)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        patiently(locked, "done")
    assert sqlite_waiting.BUSY_SECONDS == pytest.approx(locked.now, abs=0.05)


def test_what_is_no_lock_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    locked = Locked(0, monkeypatch)
    connection = sqlite3.connect(tmp_path / "empty.db")
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        patiently(connection.execute, "SELECT * FROM absent")
    connection.close()
    assert [] == locked.pauses
