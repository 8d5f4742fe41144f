"""The raw limits: what SQLite takes for the same bytes when nothing else is done.

Two tables are tried, with and without a rowid, and the faster one is the limit. Neither has a second index, a fence or
a check, so the limit cannot be reached by a journal that can be read by node; it is the floor under everything.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

__all__ = ["TABLES", "connect", "insert_each", "size_on_disk"]

TABLES = {
    "rowid": "CREATE TABLE records (id INTEGER PRIMARY KEY, run TEXT NOT NULL, data BLOB NOT NULL)",
    "without rowid": (
        "CREATE TABLE records (run TEXT NOT NULL, id INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (run, id)) "
        "WITHOUT ROWID"
    ),
}
_INSERT = "INSERT INTO records (run, id, data) VALUES (?, ?, ?)"
_LOG_PAGES = 1024
"""Of 4096 bytes: the log is moved into the database every 4 MB, as the library's store does."""


def connect(path: Path, table: str) -> sqlite3.Connection:
    """A connection to `path` with the pragmas of the library's store and one of `TABLES`, made if need be."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=10.0, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
    connection.execute(TABLES[table].replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))
    return connection


def insert_each(connection: sqlite3.Connection, run: str, sizes: Sequence[int], times: int) -> float:
    """Seconds for one insert with a commit of its own, on average over `times`, which take `sizes` in turn."""
    largest = bytes(range(32, 127)) * (max(sizes) // 95 + 1)
    payloads = {size: largest[:size] for size in set(sizes)}
    execute = connection.execute
    began = perf_counter()
    for number, size in enumerate(itertools.islice(itertools.cycle(sizes), times)):
        execute(_INSERT, (run, number, payloads[size]))
    return (perf_counter() - began) / times


def size_on_disk(path: Path) -> int:
    """Bytes of a closed database, with its log if that is still there."""
    return sum(found.stat().st_size for found in path.parent.glob(path.name + "*") if not found.name.endswith("-shm"))
