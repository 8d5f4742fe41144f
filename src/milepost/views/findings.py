"""Findings about the place where runs are kept: whether it can be used, what it promises, and what may go wrong.

`milepost doctor` and the console tell them. Looking changes nothing, but that `disk_findings` writes a file and removes it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from milepost.errors import MilepostError
from milepost.store import Store
from milepost.views.text import size

FIXED_SQLITE = (3, 51, 3)
"""The first SQLite without the WAL-reset bug. Source: https://www.sqlite.org/wal.html#walresetbug"""
OLDEST_SQLITE = (3, 35)

_LITTLE = 100 * 1024 * 1024
"""Bytes of free space that are worth a word."""
_APART = 5.0
"""Seconds between two clocks that are worth a word."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A fact about this machine or the place of a store, and whether it is a problem."""

    name: str
    value: str
    verdict: Literal["ok", "note", "problem"] = "ok"
    note: str = ""


def findings_of(store: Store) -> list[Diagnosis]:
    """Return the findings about an open store. Nothing is written.

    A server has as much time as for any call of the store. Of a store in memory, or of a kind of the user's own, only
    whether it answers is known.
    """
    path, ask_server = Path(store.place), getattr(store, "ask_server", None)
    found = list(unreadable(store))
    if path.is_file():
        found += [*file_findings(path), sqlite_finding()]
    elif path.is_dir():
        found += folder_findings(path)
    elif ask_server is not None and not found:
        found += ask_server(lambda connection: list(server_findings(connection)))
    return found


def unreadable(store: Store) -> Iterator[Diagnosis]:
    """Yield the problem that keeps the runs of a store from being listed, if there is one."""
    try:
        store.list_runs(limit=1)
    except MilepostError as exc:
        yield Diagnosis("readable", "no", "problem", str(exc))


# -- a file, a folder -----------------------------------------------------------------------------------------


def file_findings(path: Path) -> Iterator[Diagnosis]:
    """Yield what is known of a file that is there."""
    is_writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK | os.X_OK)
    note = "" if is_writable else "the file and its folder must be writable, for the log beside it"
    yield Diagnosis("writable", "yes" if is_writable else "no", "ok" if is_writable else "problem", note)
    yield _mode("file mode", path, 0o600)
    yield _free_space(path.parent)


def folder_findings(folder: Path) -> Iterator[Diagnosis]:
    """Yield what is known of a folder that is there."""
    yield _mode("folder mode", folder, 0o700)
    yield _free_space(folder)


def disk_findings(folder: Path) -> Iterator[Diagnosis]:
    """Measure how long a durable file takes, and how far the file system's clock is from the one here."""
    from milepost.stores.file.fs import Files

    files = Files(str(folder / ".milepost" / "temporary"))
    began, moment = time.perf_counter(), time.time()
    try:
        made = files.write(b"\n")
    except OSError as exc:
        yield Diagnosis("fsync", "no", "problem", f"a file could not be brought to the disk: {exc}")
        return
    duration = (time.perf_counter() - began) * 1000
    written = Path(made).stat().st_mtime
    files.discard(made)
    yield Diagnosis("fsync", f"{duration:.1f} ms for a new file")
    yield _clock(written - moment)


def _mode(name: str, path: Path, wanted: int) -> Diagnosis:
    mode = stat.S_IMODE(path.stat().st_mode)
    is_open = bool(mode & 0o077)
    advice = f"others may use it, and states may hold secrets: chmod {wanted:o} {path}" if is_open else ""
    return Diagnosis(name, f"{mode:04o}", "note" if is_open else "ok", advice)


def _free_space(folder: Path) -> Diagnosis:
    free = shutil.disk_usage(folder).free
    is_little = free < _LITTLE
    note = "little is left: a checkpoint that finds no space stops its run" if is_little else ""
    return Diagnosis("free space", size(free), "note" if is_little else "ok", note)


def _clock(ahead: float) -> Diagnosis:
    is_apart = abs(ahead) > _APART
    note = "leases and times of runs are those of the store's clock, which is not the one here" if is_apart else ""
    return Diagnosis("clock", f"{ahead:+.2f} s from here", "note" if is_apart else "ok", note)


# -- SQLite, and a server -------------------------------------------------------------------------------------


def sqlite_finding() -> Diagnosis:
    """Look at the SQLite that this Python has."""
    version, found = sqlite3.sqlite_version_info, sqlite3.sqlite_version
    if version < OLDEST_SQLITE:
        return Diagnosis("sqlite", found, "problem", "SQLite stores need 3.35 or newer")
    if version < FIXED_SQLITE:
        note = (
            "has the WAL-reset bug (before 3.51.3); milepost guards against it: no write begins in its processes while "
            "the log is moved. Do not let other programs write to the same file"
        )
        return Diagnosis("sqlite", found, "note", note)
    return Diagnosis("sqlite", found)


def server_findings(connection: Any) -> Iterator[Diagnosis]:
    """Ask a PostgreSQL server over a connection of psycopg, outside of a transaction."""
    yield _server_version(connection)
    yield _pooler(connection)
    yield _durability(connection)
    yield _server_clock(connection)


def _server_version(connection: Any) -> Diagnosis:
    version: int = connection.info.server_version
    return Diagnosis("server", f"PostgreSQL {version // 10_000}.{version % 10_000}")


def _pooler(connection: Any) -> Diagnosis:
    """Behind a pooler another process of the server answers than the one that the connection was opened to."""
    if _asked(connection, "SELECT pg_backend_pid()") == connection.info.backend_pid:
        return Diagnosis("connection", "direct")
    note = "statements are not prepared behind it, which costs some of the speed; nothing else is lost"
    return Diagnosis("connection", "through a pooler", "ok", note)


def _durability(connection: Any) -> Diagnosis:
    names = ("fsync", "synchronous_commit", "full_page_writes")
    weak = [f"{name} = off" for name in names if _asked(connection, f"SHOW {name}") == "off"]
    note = f"{', '.join(weak)}: what was reported saved may be gone after the server crashed" if weak else ""
    return Diagnosis("durable", "no" if weak else "yes", "problem" if weak else "ok", note)


def _server_clock(connection: Any) -> Diagnosis:
    before = time.time()
    there = _asked(connection, "SELECT extract(epoch FROM clock_timestamp())::float8")
    return _clock(there - (before + time.time()) / 2)


def _asked(connection: Any, question: str) -> Any:
    from psycopg.rows import tuple_row

    # A connection of a user's pool may give rows of another kind.
    (answer,) = connection.cursor(row_factory=tuple_row).execute(question, prepare=False).fetchone()
    return answer
