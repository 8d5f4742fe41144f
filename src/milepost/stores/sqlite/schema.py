"""The tables of a SQLite store, and the upgrade of a file to them.

People see these in the `sqlite3` shell: `runs`, one row each; the view `journal`, all records by run and number; the
view `checkpoints`, the newest state by run and node. Records of all runs are stored in the order in which they came. So
records that are committed together share pages, which costs half of what a table ordered by run does.

`header` is whole JSON.
"""

from __future__ import annotations

import functools
import os
import re
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

from milepost.errors import StoreError, StoreVersionError
from milepost.stores.base.folders import make_folders

VERSION = 9
BUSY_SECONDS = 10.0
"""Seconds that any statement waits for the lock of a file before it fails."""

# Lists are read in the order of `id`, with which each index ends anyway. Due runs have indexes of their own,
# which are as small as the number of waiting runs. A renewal of a lease changes none of them, and an append
# changes no index of `runs`.
_RUN_INDEXES = """
CREATE INDEX runs_by_flow ON runs (flow);
CREATE INDEX runs_by_status ON runs (status);
CREATE INDEX runs_by_flow_and_status ON runs (flow, status);
CREATE INDEX runs_rested ON runs (status, updated_at, run_id) WHERE status <> 'running';
CREATE INDEX runs_ready ON runs (flow) WHERE status = 'ready' AND wake_at IS NULL;
CREATE INDEX runs_timed ON runs (flow, status, wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX runs_drained ON runs (flow) WHERE status = 'interrupted' AND worked;

-- What `runs.tags` says, once more, to find runs by it.
CREATE TABLE run_tags (
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    run INTEGER NOT NULL,
    PRIMARY KEY (name, value, run)
) STRICT, WITHOUT ROWID;
-- What a damaged database has in their place is no tag.
CREATE TRIGGER run_tags_begin AFTER INSERT ON runs WHEN NEW.tags <> '{}' BEGIN
    INSERT INTO run_tags
    SELECT key, value, NEW.id FROM json_each(CASE WHEN json_valid(NEW.tags) THEN NEW.tags END) WHERE value IS NOT NULL;
END;
CREATE TRIGGER run_tags_change AFTER UPDATE OF tags ON runs WHEN OLD.tags <> NEW.tags BEGIN
    DELETE FROM run_tags WHERE run = OLD.id AND (name, value) IN (
        SELECT key, value FROM json_each(CASE WHEN json_valid(OLD.tags) THEN OLD.tags END)
    );
    INSERT OR IGNORE INTO run_tags
    SELECT key, value, NEW.id FROM json_each(CASE WHEN json_valid(NEW.tags) THEN NEW.tags END) WHERE value IS NOT NULL;
END;
CREATE TRIGGER run_tags_end AFTER DELETE ON runs WHEN OLD.tags <> '{}' BEGIN
    DELETE FROM run_tags WHERE run = OLD.id AND (name, value) IN (
        SELECT key, value FROM json_each(CASE WHEN json_valid(OLD.tags) THEN OLD.tags END)
    );
END;
"""

_TABLES = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    flow TEXT NOT NULL,
    status TEXT NOT NULL,
    reason TEXT NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    epoch INTEGER NOT NULL,
    nonce TEXT NOT NULL,
    owner TEXT NOT NULL,
    lease REAL NOT NULL,
    lease_until REAL,
    wake_at REAL,
    waiting TEXT NOT NULL,
    crash_count INTEGER NOT NULL,
    crashed_at INTEGER NOT NULL,
    signals INTEGER NOT NULL,
    cancel TEXT,
    degraded INTEGER NOT NULL,
    missed TEXT NOT NULL,
    tags TEXT NOT NULL,
    live TEXT NOT NULL,
    worked INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    blocked_by TEXT NOT NULL DEFAULT '',
    seal TEXT NOT NULL DEFAULT '',
    life TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX runs_cancel ON runs (flow) WHERE cancel IS NOT NULL;
CREATE INDEX runs_by_creation ON runs (created_at);

CREATE TABLE records (
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    kind TEXT NOT NULL,
    node_id TEXT NOT NULL,
    visit INTEGER NOT NULL,
    size INTEGER NOT NULL,
    packing TEXT NOT NULL,
    header TEXT,
    payload BLOB
) STRICT;
CREATE UNIQUE INDEX records_by_number ON records (run, sequence);
CREATE INDEX records_by_node ON records (run, node_id, sequence) WHERE node_id <> '';

CREATE TABLE signals (
    run INTEGER NOT NULL,
    number INTEGER NOT NULL,
    name TEXT NOT NULL,
    payload BLOB,
    signal_id TEXT,
    wait_id TEXT,
    sent_at REAL NOT NULL,
    sent_by TEXT,
    PRIMARY KEY (run, number)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX signals_by_id ON signals (run, signal_id) WHERE signal_id IS NOT NULL;

-- Schedules that are paused, which no worker starts.
CREATE TABLE paused_schedules (
    name TEXT PRIMARY KEY,
    time REAL NOT NULL,
    body BLOB NOT NULL
) STRICT, WITHOUT ROWID;
"""

_VIEWS = """
CREATE VIEW journal (run_id, sequence, kind, node_id, visit, timestamp, size, header) AS
SELECT runs.run_id, records.sequence, kind, node_id, visit,
    json_extract(CASE WHEN json_valid(header) THEN header END, '$.timestamp'),
    size, header
FROM runs JOIN records ON records.run = runs.id
ORDER BY records.run, records.sequence;

-- The newest live visit of each node. `data` is NULL where a state is packed. For SQLite's JSON functions:
-- json_extract(CAST(data AS TEXT), '$.state').
CREATE VIEW checkpoints (run_id, node_id, sequence, timestamp, data) AS
SELECT run_id, node_id, sequence,
    json_extract(CASE WHEN json_valid(header) THEN header END, '$.timestamp'),
    CASE
        WHEN packing = 'verbatim' THEN payload
        WHEN packing <> '' THEN NULL
        WHEN payload IS NULL THEN CAST(header AS BLOB)
        ELSE CAST(substr(header, 1, length(header) - 1) || ',"state":' || CAST(payload AS TEXT) || '}' AS BLOB)
    END
FROM (
    SELECT runs.run_id, records.*, max(records.sequence)
    FROM runs JOIN records ON records.run = runs.id
    WHERE records.kind = 'checkpoint' AND (
        runs.live = '[]' OR EXISTS (
            SELECT 1 FROM json_each(runs.live) WHERE records.sequence
            BETWEEN json_extract(value, '$[1]') AND coalesce(json_extract(value, '$[2]'), records.sequence)
        )
    )
    GROUP BY runs.id, records.node_id
)
ORDER BY run, sequence;
"""


_STEPS = {
    1: "ALTER TABLE runs ADD COLUMN pruned INTEGER NOT NULL DEFAULT 0;",
    2: "DROP INDEX IF EXISTS runs_due;\n"  # noqa: S608
    + _RUN_INDEXES
    + "INSERT INTO run_tags SELECT key, value, runs.id FROM runs, json_each(CASE WHEN json_valid(tags) THEN tags END) "
    "WHERE value IS NOT NULL;",
    3: "ALTER TABLE runs ADD COLUMN blocked_by TEXT NOT NULL DEFAULT '';",
    4: "ALTER TABLE signals ADD COLUMN sent_by TEXT;",
    5: "ALTER TABLE runs ADD COLUMN seal TEXT NOT NULL DEFAULT '';",
    6: "CREATE INDEX IF NOT EXISTS runs_by_creation ON runs (created_at);",
    7: "CREATE TABLE IF NOT EXISTS paused_schedules (name TEXT PRIMARY KEY, time REAL NOT NULL, body BLOB NOT NULL) "
    "STRICT, WITHOUT ROWID;\n"
    "DROP VIEW IF EXISTS journal;\nDROP VIEW IF EXISTS checkpoints;\nALTER TABLE records DROP COLUMN note;\n"
    "ALTER TABLE runs ADD COLUMN life TEXT NOT NULL DEFAULT '';\n" + _VIEWS,
    8: "ALTER TABLE runs DROP COLUMN pruned;",
}
"""For each version, the statements that turn its tables into the next version's."""
_DROPPED = {"noteTEXT", "prunedINTEGERNOTNULLDEFAULT0"}
"""The definitions of columns that only older versions have."""


def resolve(place: str) -> str:
    """Return the path itself, or that of the file to which it is a link: SQLite names the files beside by that.

    Raise StoreError for a link of somebody who only shares the folder: he would choose the file.
    """
    if not os.path.islink(place):
        return place
    if hasattr(os, "geteuid"):
        owner = os.lstat(place).st_uid
        if owner not in {0, os.geteuid(), os.stat(os.path.dirname(place)).st_uid}:
            raise StoreError(
                f"{place} is a link of user {owner}, who owns neither its folder nor this process: find out who put it there, "
                f"or open the file that it leads to",
                store=place,
                op="open",
            )
    return os.path.realpath(place)


def create_file(path: Path) -> None:
    """Create an empty file that only its owner may read, unless there is one. Create missing folders above it too."""
    try:
        make_folders(str(path.parent))
        # Never open an existing file: closing it would drop the locks that SQLite, elsewhere in
        # this process, holds on it.
        # Source: https://www.sqlite.org/howtocorrupt.html, on POSIX advisory locks
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except (OSError, ValueError) as exc:  # the latter: a path that no file can have
        raise StoreError(
            f"can't make the store {str(path)!r}: {getattr(exc, 'strerror', None) or exc}: look at its folder, or "
            f"choose another place",
            store=str(path),
            op="open",
        ) from exc


def identity_of(path: str) -> tuple[int, int] | None:
    """Return what tells the file at `path` from all others; None if there is none. Raise OSError if that can't be found out."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def refuse_links(place: str) -> None:
    """Raise StoreError if a file beside the database is a link, has a second name, or is no regular file.

    SQLite would write through it into a file that somebody who shares the folder chose.
    """
    beside = linked_beside(place)
    if beside is not None:
        raise StoreError(
            f"{beside} is a link or no regular file, and SQLite would write to it: find out who put it there, and remove it",
            store=place,
            op="open",
        )


def linked_beside(place: str) -> str | None:
    """Return the first file beside a database that is a link, has a second name, or is no regular file; None for none."""
    for beside in (f"{place}-wal", f"{place}-shm", f"{place}-journal"):
        with suppress(FileNotFoundError):
            if not _is_plain(os.lstat(beside)):
                return beside
    return None


def share_rights(path: Path) -> None:
    """Let all who may write the database write its log. SQLite creates the log with the rights that the file had then,
    which may have been read-only."""
    with suppress(OSError):
        writing = os.stat(path).st_mode & 0o222
        for beside in (f"{path}-wal", f"{path}-shm"):
            with suppress(OSError):
                _allow(beside, writing)


def _allow(path: str, rights: int) -> None:
    """Add rights to a file of ours, never to one that a link leads to."""
    if not hasattr(os, "O_PATH"):
        status = os.lstat(path)
        if _is_plain(status) and rights & ~status.st_mode and os.chmod in os.supports_follow_symlinks:
            os.chmod(path, stat.S_IMODE(status.st_mode) | rights, follow_symlinks=False)
        return
    # Closing any other descriptor of the file would drop the locks that SQLite, elsewhere in this process, holds on it.
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if _is_plain(status) and status.st_uid == os.geteuid() and rights & ~status.st_mode:
            os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(status.st_mode) | rights)
    finally:
        os.close(descriptor)


def _is_plain(status: os.stat_result) -> bool:
    """Return whether it is a regular file that has no second name; one that was just removed has none at all."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink <= 1


def distrust(connection: sqlite3.Connection) -> None:
    """Keep what the file defines from more than SQL that is harmless, and have its pages checked: it may be of others."""
    connection.execute("PRAGMA cell_size_check = ON")
    if _knows_json_as_harmless():
        connection.execute("PRAGMA trusted_schema = OFF")


@functools.cache
def _knows_json_as_harmless() -> bool:
    """Return whether SQLite lets our triggers use its JSON functions without trust. Older ones do not."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE VIEW probe AS SELECT json_valid('1'), json_extract('1', '$') FROM json_each('[1]')")
        connection.execute("PRAGMA trusted_schema = OFF")
        try:
            connection.execute("SELECT * FROM probe")
        except sqlite3.OperationalError:
            return False
        return True


def prepare(connection: sqlite3.Connection, place: str, take_over: Callable[[sqlite3.Connection], None]) -> None:
    """Upgrade the database to this version, even if other processes do so at the same time.

    `take_over` makes runs from the rows of `checkpoints_v0`, in the same transaction. Raise `StoreVersionError` for
    tables of a newer release, and `StoreError` for a file of another program, which stays unchanged.
    """
    patiently(lambda: _refuse_foreign(connection, place))
    patiently(lambda: _use_wal(connection))
    if _version(connection, place) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = _version(connection, place)
        for version in range(found, VERSION) if found else ():
            _execute(connection, _STEPS[version])
        if not found:
            is_old = "checkpoints" in _tables(connection)
            if is_old:
                connection.execute("ALTER TABLE checkpoints RENAME TO checkpoints_v0")
            _execute(connection, _TABLES + _VIEWS + _RUN_INDEXES)
            if is_old:
                take_over(connection)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def check(connection: sqlite3.Connection, place: str) -> None:
    """Raise StoreError unless the database has the tables of this version. Change nothing."""
    patiently(lambda: _refuse_foreign(connection, place))
    found = _version(connection, place)
    if found != VERSION:
        raise StoreError(
            f"the store {place} has {f'tables of version {found}' if found else 'no tables of this library'}, and "
            f"is opened to read only: open it without read_only, or use `milepost db migrate`, to bring it to version "
            f"{VERSION}",
            store=place,
            op="open",
        )


def _execute(connection: sqlite3.Connection, script: str) -> None:
    """Execute a script's statements in the open transaction, which executescript() would commit first."""
    if sqlite3.sqlite_version_info < (3, 37):
        script = script.replace("STRICT, ", "").replace("STRICT", "")
    for statement in _statements(script):
        connection.execute(statement)


def _statements(script: str) -> Iterator[str]:
    current = ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            yield current
            current = ""


@functools.cache
def own_objects() -> dict[str, str]:
    """Return the text of each table, index, trigger and view that a store makes, by its name, without what may differ."""
    found: dict[str, str] = {}
    for statement in _statements(_TABLES + _VIEWS + _RUN_INDEXES):
        named = re.search(r"CREATE (?:UNIQUE )?(?:TABLE|INDEX|VIEW|TRIGGER) (\w+)", statement)
        assert named is not None
        found[named[1]] = essence_of(statement[named.start() :])
    return found


def essence_of(sql: str) -> str:
    """Return a statement without white space and `STRICT`, in which the texts of one object may differ."""
    return "".join(sql.replace("STRICT, ", "").replace("STRICT", "").split()).rstrip(";")


def first_rows(connection: sqlite3.Connection) -> Iterator[tuple[Any, Any, Any, bytes]]:
    """Yield run, node, timestamp and data of the rows of `checkpoints_v0`, each run's in their order.

    A table of SQLite takes a value of any type in any column. Data that are no bytes are given as their text in bytes.
    """
    query = "SELECT run_id, node_id, timestamp, CAST(data AS BLOB) FROM checkpoints_v0 ORDER BY run_id, sequence, {}"
    # Text that is no UTF-8 must hide no other row. What it is decoded to can't be an id.
    connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
    try:
        try:
            rows = connection.execute(query.format("rowid"))
        except sqlite3.OperationalError:  # a table WITHOUT ROWID
            rows = connection.execute(query.format("node_id"))
        found = rows.fetchall()
    finally:
        connection.text_factory = str
    for run_id, node_id, timestamp, data in found:
        yield run_id, node_id, timestamp, data or b""


def _tables(connection: sqlite3.Connection) -> set[str]:
    found = connection.execute("SELECT lower(name) FROM sqlite_master WHERE type = 'table'")
    return {name for (name,) in found.fetchall()}


def _refuse_foreign(connection: sqlite3.Connection, place: str) -> None:
    """Raise StoreError for a database that another program made, or that a store can't use."""
    connection.execute("BEGIN")  # all reads show one moment: another process may be about to make the tables
    try:
        version, tables = _version(connection, place), _tables(connection)
        encoding = connection.execute("PRAGMA encoding").fetchone()[0]
        columns = {name.lower() for _, name, *_ in connection.execute("PRAGMA table_info(checkpoints)").fetchall()}
        foreign = _foreign_object(connection, version) if version else None
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    ours = {"runs", "records", "signals"}
    is_first_form = columns >= {"run_id", "node_id", "sequence", "timestamp", "data"}
    if not (ours <= tables if version else not tables & ours and ("checkpoints" not in tables or is_first_form)):
        raise StoreError(
            f"the database {place} has the tables of another program ({', '.join(sorted(tables)[:5]) or 'none'}): choose "
            f"another file",
            store=place,
            op="open",
        )
    if foreign is not None:
        raise StoreError(
            f"the database {place} has {foreign} that no store makes, and that would act on its runs: if you did not add "
            f"it, trust nothing in this file; otherwise drop it",
            store=place,
            op="open",
        )
    if encoding != "UTF-8":
        raise StoreError(
            f"the database {place} keeps text as {encoding}: make a store in another file, and save there what is in this "
            f"one",
            store=place,
            op="open",
        )


def _foreign_object(connection: sqlite3.Connection, version: int) -> str | None:
    """Name what is defined on the store's tables, or in their place, and is not the store's; None if nothing is.

    Whoever made the file could have SQLite execute what he likes by it. Users' own tables, with what is on them, may
    stand beside ours.
    """
    own = own_objects()
    query = "SELECT type, lower(name), lower(tbl_name), sql FROM sqlite_master"
    for kind, name, table, sql in connection.execute(query).fetchall():
        text = essence_of(sql or "")
        if text == own.get(name):  # as nearly all are
            continue
        if name in own:
            found, known = _parts(text), _parts(own[name])
            # Before an upgrade a table has other columns, and so have our views, which no store reads.
            is_older = version < VERSION and (
                (kind == "index" and not _computes(text))
                or (kind == "view" and own[name].startswith("CREATEVIEW"))
                or (kind == "table" and found - _DROPPED <= known)
            )
            is_foreign = found != known and not is_older
        else:
            is_foreign = table in own and (kind == "trigger" or _computes(text))
        if is_foreign:
            return f"the {kind} {name[:100]!r}"
    return None


def _computes(index: str) -> bool:
    """Return whether SQLite has more to do for an index than to compare columns."""
    return index.count("(") > 1 or "||" in index


def _parts(essence: str) -> frozenset[str]:
    """Return the definitions that a table consists of, in no order: an upgrade puts a column at the end. Others are whole."""
    if not essence.startswith("CREATETABLE"):
        return frozenset({essence})
    head, _, rest = essence.partition("(")
    body, _, tail = rest.rpartition(")")
    return frozenset({f"{head}(){tail}", *re.split(r",(?![^(]*\))", body)})


def _version(connection: sqlite3.Connection, place: str) -> int:
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if found > VERSION:
        raise StoreVersionError(
            f"the store {place} has tables of version {found}; this library knows up to {VERSION}: upgrade milepost",
            store=place,
            op="open",
            found=found,
            supported=VERSION,
        )
    return found


T = TypeVar("T")
_SHORTEST_WAIT, _LONGEST_WAIT = 0.001, 0.004
"""Seconds between two attempts to get the lock: a part of the time already waited, within these limits."""


def patiently(act: Callable[[], T]) -> T:
    """Call `act` until no other process holds the lock that it needs, for at most `BUSY_SECONDS`.

    SQLite's own wait sleeps for 1, 2, 5, ... 100 ms. A commit holds the lock for a fraction of a millisecond: the process
    that had it last gets it again, and the others starve. SQLite also fails at once, without a wait, if several
    connections switch a new file to WAL.
    """
    begun = time.monotonic()
    while True:
        try:
            return act()
        except sqlite3.OperationalError as exc:
            waited = time.monotonic() - begun
            if getattr(exc, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY or waited > BUSY_SECONDS:
                raise
            time.sleep(min(_SHORTEST_WAIT + waited / 8, _LONGEST_WAIT))


def _use_wal(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA journal_mode").fetchone()[0] not in {"wal", "memory"}:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise sqlite3.NotSupportedError(f"its file system has no write-ahead log, SQLite stays at {mode!r}")
