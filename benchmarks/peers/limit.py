"""No library: a loop that calls the function, and an insert with a commit of what each step made."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.peers.peer import Peer, Place, in_threads, pragmas
from benchmarks.raw import connect

__all__ = ["Limit"]

_INSERT = "INSERT INTO records VALUES (?, ?, ?)"
_INSERT_PG = "INSERT INTO records VALUES (%s, %s, %s)"


class Limit(Peer):
    """The least that could be done. On PostgreSQL the insert is prepared."""

    def unsaved(self, times: int) -> None:
        value = self.task.begin()
        for n in range(times):
            value = self.task.merged(value, self.turn(n))

    @contextmanager
    def opened(self, place: Place) -> Iterator[Any]:
        if place.path:
            connection = connect(Path(place.path), "without rowid")
            connection.execute("PRAGMA busy_timeout = 30000")
            yield connection
            connection.close()
            return
        with self._connected(place.dsn) as first, ExitStack() as stack:
            first.execute("CREATE TABLE IF NOT EXISTS records (run text, id bigint, data bytea, PRIMARY KEY (run, id))")
            yield lambda: stack.enter_context(self._connected(place.dsn))

    @staticmethod
    def _connected(dsn: str) -> Any:
        import psycopg

        return psycopg.connect(dsn, autocommit=True)

    def settings(self, store: Any) -> str:
        return "an insert and a commit per step, " + (
            pragmas(store.execute) if isinstance(store, sqlite3.Connection) else "prepared"
        )

    def run(self, store: Any, run_id: str, times: int) -> None:
        if isinstance(store, sqlite3.Connection):
            for n in range(times):
                store.execute(_INSERT, (run_id, n, msgspec.json.encode(self.turn(n))))
            return
        cursor = store().cursor()
        for n in range(times):
            cursor.execute(_INSERT_PG, (run_id, n, msgspec.json.encode(self.turn(n))), prepare=True)

    def resume(self, store: Any, run_id: str, times: int) -> None:
        newest = "SELECT id, data FROM records WHERE run = ? ORDER BY id DESC LIMIT 1"
        number, _ = store.execute(newest, (run_id,)).fetchone()
        store.execute(_INSERT, (f"owner of {run_id}", self._owners(store, run_id), b" " * 400))
        self.turn(number + 1)

    @staticmethod
    def _owners(store: Any, run_id: str) -> int:
        count = "SELECT count(*) FROM records WHERE run = ?"
        return int(store.execute(count, (f"owner of {run_id}",)).fetchone()[0])

    def together(self, store: Any, run_ids: list[str], times: int) -> None:
        if isinstance(store, sqlite3.Connection):
            for run_id in run_ids:  # one thread: nothing is faster with one commit per step
                self.run(store, run_id, times)
            return
        connected = {run_id: store() for run_id in run_ids}
        in_threads([lambda run_id=run_id: self.run(lambda: connected[run_id], run_id, times) for run_id in run_ids])
