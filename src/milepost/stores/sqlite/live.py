"""Live events of a SQLite store, in a database of their own beside it, `runs.db-live`.

It is written without syncs, under locks of its own: no run waits for it, and no run is harmed if it is lost. A file that
the loss of power has damaged is deleted and begun anew.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import astuple

from milepost.model.live import LiveBatch, LiveEvent, Place
from milepost.stores.base.live import beyond
from milepost.stores.sqlite.schema import distrust, essence_of, identity_of, linked_beside, patiently

T = TypeVar("T")

_BUSY_SECONDS = 2.0
_APPLICATION = 0x6D6C6976
"""A number in the file's header that says whose file it is."""
_TABLE = """
CREATE TABLE live_events (
    run_id TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    number INTEGER NOT NULL,
    follows INTEGER NOT NULL,
    time REAL NOT NULL,
    node_id TEXT NOT NULL,
    visit INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (run_id, epoch, number)
) WITHOUT ROWID
"""
_WORKERS = """
CREATE TABLE IF NOT EXISTS workers (name TEXT PRIMARY KEY, time REAL NOT NULL, body BLOB NOT NULL) WITHOUT ROWID
"""
_OWN = {essence_of(sql.replace("IF NOT EXISTS ", "")) for sql in (_TABLE, _WORKERS)}
_GET = """
SELECT epoch, number, follows, time, node_id, visit, attempt, body FROM live_events
WHERE run_id = ? AND (epoch, number) > (?, ?) ORDER BY epoch, number LIMIT ?
"""
_inherited: list[sqlite3.Connection] = []


class LiveFile:
    """The file of live events at `path`; it is made when the first event is kept."""

    def __init__(self, path: str, *, is_read_only: bool) -> None:
        self._path = path
        self._is_read_only = is_read_only
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        """The file of the connection."""

    def put(self, batches: Sequence[LiveBatch]) -> None:
        """Keep the events of `batches`."""
        rows = [(run_id, *astuple(event)) for run_id, events, _ in batches for event in events]
        forgotten = [(run_id, *place) for run_id, _, place in batches if place[1]]

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT OR REPLACE INTO live_events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
            connection.executemany("DELETE FROM live_events WHERE run_id = ? AND (epoch, number) <= (?, ?)", forgotten)

        self._write_again(write)

    def get(self, run_id: str, after: Place, limit: int) -> list[LiveEvent]:
        """Return events above `after`."""
        return [LiveEvent(*values) for values in self._read(_GET, (run_id, *after, limit))]

    def sweep(self, before: float, most_bytes: int) -> None:
        """Delete old events."""
        if not os.path.exists(self._path):
            return

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM live_events WHERE time < ?", (before,))
            sizes = connection.execute("SELECT run_id, max(time), sum(length(body)) FROM live_events GROUP BY run_id")
            for run_id in beyond({run_id: (time, size) for run_id, time, size in sizes}, most_bytes):
                connection.execute("DELETE FROM live_events WHERE run_id = ?", (run_id,))

        self._write(write)
        with self._lock:
            if self._connection is not None:
                self._connection.execute("PRAGMA incremental_vacuum").fetchall()

    def drop(self, run_id: str) -> None:
        """Delete the events of a run."""
        if os.path.exists(self._path):
            self._write(lambda connection: connection.execute("DELETE FROM live_events WHERE run_id = ?", (run_id,)))

    def execute(self, query: str, values: Sequence[Any]) -> list[Any]:
        """Execute one statement about workers, whose table is in this file too, and return its rows."""
        if query.startswith("SELECT"):
            return self._read(query, values)

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(_WORKERS)
            connection.execute(query, values)

        self._write_again(write)
        return []

    def close(self) -> None:
        """Close the connection. It is opened again when it is needed."""
        with self._lock:
            self._close()

    def before_fork(self) -> None:
        """Close the connection, which no fork may inherit, and let nobody open it."""
        self._lock.acquire()
        self._close()

    def after_fork(self, is_child: bool) -> None:
        """Go on after a fork, which may not have been announced."""
        if not is_child:
            self._lock.release()
            return
        if self._connection is not None:
            _inherited.append(self._connection)
        self._connection, self._lock = None, threading.Lock()

    # -- below ---------------------------------------------------------------------------------------

    def _read(self, query: str, values: Sequence[Any]) -> list[Any]:
        try:
            with self._lock:
                connection = self._open()
                return [] if connection is None else connection.execute(query, values).fetchall()
        except sqlite3.DatabaseError:  # it is being made, or is damaged: whoever writes next mends it
            return []

    def _write_again(self, write: Callable[[sqlite3.Connection], object]) -> None:
        """Write, and if that fails write once more: into a new file if this one is damaged."""
        try:
            self._write(write)
        except sqlite3.OperationalError:  # such as a lock; the connection is opened anew
            self._write(write)
        except sqlite3.DatabaseError:
            if not self._remove_damaged():
                raise
            self._write(write)

    def _write(self, write: Callable[[sqlite3.Connection], object]) -> None:
        with self._lock:
            connection = self._open(is_made=True)
            assert connection is not None
            try:
                connection.execute("BEGIN IMMEDIATE")
                write(connection)
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                self._close()
                raise

    def _open(self, *, is_made: bool = False) -> sqlite3.Connection | None:
        """Open the connection unless it is open; None if there is no file and none is to be made."""
        if self._connection is not None:
            if identity_of(self._path) == self._identity:
                return self._connection
            self._close()  # the file was removed, as a damaged one is, and nobody else reads what is written to it
        try:
            if is_made:
                # Never open a file that is there: closing it would drop SQLite's locks on it.
                with suppress(FileExistsError):
                    os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            found = os.lstat(self._path)
            if not stat.S_ISREG(found.st_mode) or linked_beside(self._path) is not None:
                raise sqlite3.OperationalError(f"{self._path}, or what is beside it, is a link or no regular file")
        except FileNotFoundError:
            if is_made:
                raise
            return None
        connection = sqlite3.connect(
            f"{Path(self._path).as_uri()}?mode={'ro' if self._is_read_only else 'rw'}",
            uri=True,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            distrust(connection)
            if is_made:
                patiently(lambda: _prepare(connection))
            elif not _is_ours(connection):  # whoever writes to it is about to make the table
                connection.close()
                return None
            connection.execute("PRAGMA synchronous = OFF")
        except BaseException:
            connection.close()
            raise
        self._connection, self._identity = connection, (found.st_dev, found.st_ino)
        return connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _remove_damaged(self) -> bool:
        """Delete a file that is damaged and ours; return whether it is."""
        with self._lock:
            self._close()
            with open(self._path, "rb") as file:
                head = file.read(100)
            is_ours = head[68:72] == _APPLICATION.to_bytes(4, "big") or not head.strip(b"\0")
            if is_ours:
                for path in (self._path, f"{self._path}-wal", f"{self._path}-shm"):
                    with suppress(FileNotFoundError):
                        os.unlink(path)
            return is_ours


def _is_ours(connection: sqlite3.Connection) -> bool:
    """Return whether the file is one of live events. Raise DatabaseError, as for a damaged one, if it has more than our
    tables: SQLite would execute what somebody else defined."""
    found: tuple[int] = connection.execute("PRAGMA application_id").fetchone()
    if found != (_APPLICATION,):
        return False
    for name, sql in connection.execute("SELECT name, sql FROM sqlite_master"):
        if essence_of(sql or "") not in _OWN:
            raise sqlite3.DatabaseError(f"the file of live events has {name[:100]!r}, which no store makes")
    return True


def _prepare(connection: sqlite3.Connection) -> None:
    """Make the table, even if other processes do so at the same time."""
    if _is_ours(connection):
        return
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not _is_ours(connection):
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
                raise sqlite3.OperationalError("the file of live events is one of another program")
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(_TABLE)
    finally:
        connection.execute("COMMIT")
