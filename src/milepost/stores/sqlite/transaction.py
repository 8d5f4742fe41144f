"""One transaction of SQLite, and the statements that users add to it.

Values are always bound, never put into a statement's text.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import re
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Unpack, get_args

from milepost.errors import OptionError, StoreError
from milepost.model.record import Record
from milepost.store import Statement, Status, Token
from milepost.stores.base.fence import Row
from milepost.stores.base.sql import SQLTransaction
from milepost.stores.base.transaction import (
    ENDS,
    DamagedRow,
    RowFilters,
    damaged_row,
    failed_statement,
    json_text,
    record_of,
    record_values,
    row_of,
    row_to_show,
    row_values,
)
from milepost.stores.sqlite.schema import own_objects

# -- Users' statements in a transaction of a SQLite store, which they may neither end nor leave ----
#
# SQLite itself reports what a statement does while it compiles it. Refused are control of the transaction, other
# databases, pragmas, and changes of the store's own tables, through triggers too. Nothing is parsed but the conflict
# clause ROLLBACK, which SQLite does not report.
# Source: https://www.sqlite.org/c3ref/set_authorizer.html


_OWN = frozenset({*own_objects(), "checkpoints_v0"})
_READING = frozenset({sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_REFUSED = {
    sqlite3.SQLITE_TRANSACTION: "it controls the transaction, which is the checkpoint's",
    sqlite3.SQLITE_SAVEPOINT: "it controls the transaction, which is the checkpoint's",
    sqlite3.SQLITE_ATTACH: "it opens another database, which one transaction can't be durable with",
    sqlite3.SQLITE_DETACH: "it closes another database",
    sqlite3.SQLITE_PRAGMA: "a pragma changes the store's connection",
}

# Texts, quoted names and comments. A comment without an end ends with the statement.
_QUOTED = r"""(?s)'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|--[^\n]*|/\*.*?(?:\*/|\Z)"""
_ROLLBACK = r"(?i)\b(?:(?:INSERT|UPDATE)\s+OR|ON\s+CONFLICT)\s+ROLLBACK\b"

# Primary result codes for a fault of the backend, not of the statement. NOMEM, BUSY, LOCKED, READONLY, INTERRUPT, IOERR,
# CORRUPT, FULL, CANTOPEN, PROTOCOL, NOTADB; see https://www.sqlite.org/rescode.html
_MEDIUM = frozenset({7, 5, 6, 8, 9, 10, 11, 13, 14, 15, 26})


def perform(connection: sqlite3.Connection, statements: Sequence[Statement]) -> None:
    """Execute statements in the open transaction, in order, each to its end.

    Raise `StatementError` if one fails or is refused, and sqlite3's errors if the backend fails.
    """
    guard = _Guard()
    # Setting it makes SQLite compile all statements again, so that no cached one escapes the check.
    connection.set_authorizer(guard)
    try:
        for statement in statements:
            _perform(connection, statement, guard)
    finally:
        connection.set_authorizer(None)


def _perform(connection: sqlite3.Connection, statement: Statement, guard: _Guard) -> None:
    sql, params = statement
    guard.reason = ""
    try:
        if re.search(_ROLLBACK, re.sub(_QUOTED, " ", sql)):
            guard.reason = "its conflict clause ROLLBACK ends the transaction, which is the checkpoint's: use ABORT"
            raise _refusal(guard.reason)
        if not re.sub(_QUOTED, _without_comments, sql).strip("; \t\r\n\f"):
            raise OptionError("there is no statement in it", option="sql")
        cursor = connection.execute(sql, params)
        try:
            for _ in cursor:  # a statement with rows is complete only once they are read
                pass
        finally:
            cursor.close()
    except Exception as exc:
        if (getattr(exc, "sqlite_errorcode", 0) or 0) & 0xFF in _MEDIUM:
            raise
        cause = _refusal(guard.reason) if guard.reason and not isinstance(exc, OptionError) else exc
        raise failed_statement(sql, cause) from cause
    if not connection.in_transaction:
        raise StoreError(f"the transaction ended within the statement {sql!r}", op="append")


def _refusal(reason: str) -> OptionError:
    return OptionError(f"the statement is refused: {reason}", option="sql")


def _without_comments(quoted: re.Match[str]) -> str:
    return " " if quoted[0].startswith(("--", "/*")) else "x"


class _Guard:
    """An authorizer of what a statement does. `reason` says why the last refused action is not allowed."""

    def __init__(self) -> None:
        self.reason = ""

    def __call__(
        self, action: int, first: str | None, second: str | None, database: str | None, trigger: str | None
    ) -> int:
        if action in _READING:
            return sqlite3.SQLITE_OK
        if action in _REFUSED:
            self.reason = _REFUSED[action]
        elif _OWN & {(first or "").lower(), (second or "").lower()}:
            self.reason = "it changes the store's own tables"
        else:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY


# The primitives of a transaction in SQL. All statements of the SQLite store are here, except the fast append.


_ROW_COLUMNS = (
    "run_id, flow, status, created_at, updated_at, epoch, nonce, owner, lease, lease_until, reason, wake_at, waiting, "
    "crash_count, crashed_at, signals, cancel, degraded, missed, tags, live, worked, sequence, blocked_by, "
    "seal, life"
)
_SELECT_ROW = f"SELECT {_ROW_COLUMNS}, id FROM runs"  # noqa: S608
_FEW = "(SELECT id AS found FROM runs WHERE {}) CROSS JOIN runs ON runs.id = found"
_INSERT_ROW = f"INSERT INTO runs ({_ROW_COLUMNS}) VALUES ({', '.join('?' * 26)})"  # noqa: S608
# What never changes is not written: SQLite writes each index again that has a column which is set.
_UPDATED = [name not in {"run_id", "flow", "created_at"} for name in _ROW_COLUMNS.split(", ")]
_UPDATE_ROW = (
    f"UPDATE runs SET {', '.join(f'{name} = ?' for name in itertools.compress(_ROW_COLUMNS.split(', '), _UPDATED))} "  # noqa: S608
    "WHERE id = ?"
)

# Rows are looked up one by one: without CROSS JOIN, which keeps that order, all runs might be read.
_RENEW = """
UPDATE runs SET lease_until = ? + lease, updated_at = ? WHERE id IN (
    SELECT runs.id FROM json_each(?) AS given CROSS JOIN runs WHERE run_id = json_extract(given.value, '$[0]')
    AND epoch = json_extract(given.value, '$[1]') AND nonce = json_extract(given.value, '$[2]')
)
RETURNING run_id, epoch, nonce, cancel
"""
_CANCELS = """
SELECT run_id, cancel FROM json_each(?) AS given CROSS JOIN runs ON run_id = given.value WHERE cancel IS NOT NULL
"""

# The cast lets a damaged header come out as bytes instead of an error of the text decoder.
_HEADER = "coalesce(CAST(header AS BLOB), x'')"
_ENTRY_COLUMNS = f"sequence, kind, node_id, visit, size, {_HEADER}, packing"
_RECORD_COLUMNS = f"sequence, kind, node_id, visit, size, {_HEADER}, packing, payload"
_INSERT_RECORD = (
    "INSERT INTO records (run, sequence, kind, node_id, visit, size, packing, header, payload) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_BY_NODE = (
    "FROM records INDEXED BY records_by_node WHERE node_id <> '' AND run = ? AND sequence BETWEEN ? AND ? "
    "AND node_id = ?"
)

# One step of the index from each node to the next, however many records a node has: SQLite has no loose index scan.
# Source: https://www.sqlite.org/lang_with.html
_NODE_IDS = """
WITH RECURSIVE nodes (id) AS (
    SELECT min(node_id) FROM records WHERE run = ? AND node_id <> ''
    UNION ALL
    SELECT (SELECT min(node_id) FROM records WHERE run = ? AND node_id > nodes.id AND node_id <> '')
    FROM nodes WHERE nodes.id IS NOT NULL
)
SELECT id FROM nodes WHERE id IS NOT NULL
"""


_LIVE_ENTRIES = _NODE_IDS.replace(
    "SELECT id FROM nodes WHERE id IS NOT NULL",
    f"""SELECT {_ENTRY_COLUMNS} FROM nodes CROSS JOIN records ON records.id = (
        SELECT each.id FROM records AS each INDEXED BY records_by_node WHERE each.node_id <> '' AND each.run = ?
        AND each.node_id = nodes.id AND each.sequence BETWEEN ? AND ? AND each.kind = 'checkpoint'
        ORDER BY each.sequence DESC LIMIT 1
    ) WHERE nodes.id IS NOT NULL""",  # noqa: S608
)

_LIVE_NODES = _NODE_IDS.replace(
    "SELECT id FROM nodes WHERE id IS NOT NULL",
    """SELECT id FROM nodes WHERE id IS NOT NULL AND EXISTS (
        SELECT 1 FROM records INDEXED BY records_by_node WHERE node_id <> '' AND run = ? AND node_id = nodes.id
        AND sequence BETWEEN ? AND ? AND kind = 'checkpoint'
    )""",
)


# The newest records of several runs that say how each ended, each run's by index.
_ENDS_OF = f"""
WITH given (number, after) AS (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?))
SELECT run, {_RECORD_COLUMNS} FROM given CROSS JOIN records ON run = number AND sequence IN (
    SELECT sequence FROM records WHERE run = number AND sequence > after AND kind IN (?, ?, ?)
    ORDER BY sequence DESC LIMIT 2
) ORDER BY run, sequence DESC
"""  # noqa: S608


_FLOWS = """
WITH RECURSIVE names (flow) AS (
    SELECT min(flow) FROM runs WHERE flow > ''
    UNION ALL
    SELECT (SELECT min(flow) FROM runs WHERE flow > names.flow) FROM names WHERE names.flow IS NOT NULL
)
SELECT flow FROM names WHERE flow IS NOT NULL LIMIT ?
"""

_TALLY = """
SELECT status, count(DISTINCT runs.id), count(records.id),
    coalesce(sum(length(CAST(header AS BLOB))), 0) + coalesce(sum(length(payload)), 0),
    min(CASE WHEN updated_at BETWEEN -62135596800 AND 253402300799 THEN updated_at END)
FROM runs LEFT JOIN records ON records.run = runs.id GROUP BY status ORDER BY status
"""


class SQLiteTransaction(SQLTransaction):
    """An open transaction of a connection."""

    by_node = _BY_NODE
    entry_columns = _ENTRY_COLUMNS
    record_columns = _RECORD_COLUMNS
    node_id_query = _NODE_IDS
    live_entry_query = _LIVE_ENTRIES
    live_node_query = _LIVE_NODES
    tally_query = _TALLY
    flow_query = _FLOWS
    # A query uses a partial index only if it repeats the index's condition.
    changed_after = "status = ? AND status <> 'running' AND updated_at > ?"
    unlimited = -1

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._numbers, self._lives = {}, {}

    def _execute(self, query: str, values: Sequence[Any]) -> sqlite3.Cursor:
        return self._connection.execute(_with_tables(query), values)

    # -- rows --------------------------------------------------------------------------------------

    def row(self, run_id: str) -> Row | None:
        try:
            found = self._execute(f"{_SELECT_ROW} WHERE run_id = ?", (run_id,)).fetchone()
        except sqlite3.OperationalError as exc:
            if not _is_undecodable(exc):
                raise
            raise damaged_row(run_id, exc) from exc
        return None if found is None else self._row(found)

    def _row(self, values: Sequence[Any]) -> Row:
        row = row_of(values)
        self._numbers[row.run_id], self._lives[row.run_id] = values[-1], row.life
        return row

    def _row_to_show(self, values: Sequence[Any]) -> Row:
        """Return the row, or what is left of a damaged one."""
        try:
            return self._row(values)
        except DamagedRow as exc:
            self._numbers[str(values[0])], self._lives[str(values[0])] = values[-1], str(values[-2])
            return row_to_show(values, exc)

    def _fetch(self, query: str, values: Sequence[Any]) -> builtins.list[Any]:
        """Fetch all rows of a query. Text that is no UTF-8 is replaced, so that it hides no other row."""
        try:
            return self._execute(query, values).fetchall()
        except UnicodeEncodeError:  # the query has a text with a lone surrogate, which no store keeps
            return []
        except sqlite3.OperationalError as exc:
            if not _is_undecodable(exc):
                raise
        self._connection.text_factory = _replacing
        try:
            return self._execute(query, values).fetchall()
        finally:
            self._connection.text_factory = str

    def add_row(self, row: Row) -> None:
        cursor = self._execute(_INSERT_ROW, row_values(row))
        self._numbers[row.run_id], self._lives[row.run_id] = cursor.lastrowid or 0, row.life

    def put_row(self, row: Row) -> None:
        self._execute(_UPDATE_ROW, (*itertools.compress(row_values(row), _UPDATED), self.number(row.run_id)))

    def renew(self, tokens: Sequence[Token], now: float) -> dict[tuple[str, int, str], str | None]:
        """Extend the leases of current `tokens`. Return their runs, epochs and nonces with the open cancels as stored."""
        given = json_text([token[:3] for token in tokens])
        return {(row[0], row[1], row[2]): row[3] for row in self._fetch(_RENEW, (now, now, given))}

    def cancels(self, run_ids: Sequence[str]) -> dict[str, str]:
        """Return the open cancels of these runs, as stored."""
        return dict(self._fetch(_CANCELS, (json_text(run_ids),)))

    def page(self, *, limit: int, after: str | int | None = None, **filters: Unpack[RowFilters]) -> builtins.list[Row]:
        columns = _SELECT_ROW.partition(" FROM ")[0]
        parts, values, number = self._parts(after, filters)
        if not parts:
            return []
        query = (
            f"{' UNION ALL '.join(f'{columns} {part}' for part in parts)} "
            f"ORDER BY {'id' if parts[1:] else number} DESC LIMIT ?"
        )
        return [self._row_to_show(found) for found in self._fetch(query, (*values, limit))]

    def count(self, limit: int, **filters: Unpack[RowFilters]) -> int:
        parts, values, _ = self._parts(None, filters)
        if not parts:
            return 0
        query = f"SELECT count(*) FROM ({' UNION ALL '.join(f'SELECT 1 {part}' for part in parts)} LIMIT ?)"  # noqa: S608
        found = self._fetch(query, (*values, limit))
        return found[0][0] if found else 0

    def _place(self, place: int, below: int | None, filters: RowFilters) -> tuple[int, str] | None:
        parts, values, number = self._parts(below, filters)
        if not parts:
            return None
        number = "id" if parts[1:] else number
        query = (
            f"{' UNION ALL '.join(f'SELECT {number} {part}' for part in parts)} ORDER BY {number} DESC LIMIT 1 OFFSET ?"
        )
        query = f"SELECT id, run_id FROM runs WHERE id = ({query})"  # noqa: S608
        found = self._fetch(query, (*values, place - 1))
        return found[0] if found else None

    def _parts(
        self, after: str | int | None, filters: RowFilters
    ) -> tuple[builtins.list[str], builtins.list[Any], str]:
        """Return the parts of a query for rows below `after`, their values, and the column of a part that orders it.

        There is one part for each status, merged as they are read: the index serves each part, as far as the limit asks for.
        """
        parts: builtins.list[str] = []
        bound: builtins.list[Any] = []
        statuses, tags = filters.get("statuses"), filters.get("tags") or {}
        number = "id"
        for status in [None] if statuses is None else [status for status in get_args(Status) if status in statuses]:
            table, number, terms, values = "runs", "id", builtins.list[str](), builtins.list[Any]()
            if not tags and (few := self._few(status, filters)) is not None:
                table, number = _FEW.format(few[0]), "found"
                values += few[1]
            for pair in tags.items():
                # One tag is found by its index, in the order of runs. All other filters are checked on the runs that have it.
                if not terms:
                    table, number = "run_tags CROSS JOIN runs ON runs.id = run_tags.run", "run_tags.run"
                    terms.append("run_tags.name = ? AND run_tags.value = ?")
                else:
                    terms.append("EXISTS (SELECT 1 FROM json_each(tags) WHERE key = ? AND value = ?)")
                values += pair
            prefix = filters.get("run_id_prefix") or ""
            for term, value in (
                (f"{number} < ?", self.number(after) if isinstance(after, str) else after),
                (f"{number} > ?", filters.get("above")),
                ("flow = ?", filters.get("flow")),
                # `+` keeps a term from an index that would need sorting: a page is read in the order of `id`.
                ("+updated_at < ?", filters.get("updated_before")),
                ("+updated_at > ?", filters.get("updated_after")),
                ("+created_at < ?", filters.get("created_before")),
                ("+created_at > ?", filters.get("created_after")),
                (f"substr(run_id, 1, {len(prefix)}) = ?", prefix or None),
                ("status = ?", status),
            ):
                if value is not None:
                    terms.append(term)
                    values.append(value)
            parts.append(f"FROM {table} {'WHERE' if terms else ''} {' AND '.join(terms)}")
            bound += values
        return parts, bound, number

    def rested(
        self, status: str, *, after: tuple[float, str], until: float, limit: int
    ) -> builtins.list[tuple[float, str]]:
        # A query uses a partial index only if it repeats the index's condition.
        is_at_rest = "" if status == "running" else "AND status <> 'running'"
        query = (
            f"SELECT updated_at, run_id FROM runs WHERE status = ? {is_at_rest} AND (updated_at, run_id) > (?, ?) "  # noqa: S608
            "AND updated_at <= ? ORDER BY updated_at, run_id LIMIT ?"
        )
        return self._fetch(query, (status, *after, until, limit))

    def candidates(self, flow: str, now: float, limit: int, skip: Collection[str] = ()) -> builtins.list[Row]:
        rows: dict[int, Row] = {}
        limit += len(skip)
        for index, term, values, most in (
            ("runs_by_flow_and_status", "status = 'running'", (flow,), -1),
            ("runs_cancel", "cancel IS NOT NULL", (flow,), -1),
            ("runs_ready", "status = 'ready' AND wake_at IS NULL ORDER BY id", (flow,), limit),
            ("runs_timed", "status = 'ready' AND wake_at <= ? ORDER BY wake_at", (flow, now), limit),
            ("runs_timed", "status = 'waiting' AND wake_at <= ? ORDER BY wake_at", (flow, now), limit),
            ("runs_drained", "status = 'interrupted' AND worked ORDER BY id", (flow,), limit),
        ):
            query = f"{_SELECT_ROW} INDEXED BY {index} WHERE flow = ? AND {term} LIMIT ?"
            rows |= self._whole_rows(query, values, most)
        return [rows[number] for number in sorted(rows)]

    def _whole_rows(self, query: str, values: Sequence[Any], wanted: int) -> dict[int, Row]:
        """Return at least the first `wanted` readable rows, by `id`; -1 for all of them."""
        most = wanted
        while True:
            rows: dict[int, Row] = {}
            found = self._fetch(query, (*values, most))
            for one in found:
                with suppress(DamagedRow):  # the other runs go on; a reader of this one gets the error
                    rows[one[-1]] = self._row(one)
            if len(rows) >= wanted or len(found) < most:
                return rows
            most *= 2  # behind damaged ones there may be more

    # -- records -----------------------------------------------------------------------------------

    def insert(self, run_id: str, records: Sequence[Record]) -> None:
        number = self.number(run_id)
        for record in records:
            self._execute(_INSERT_RECORD, (number, *record_values(record)))

    def newest(self, run_id: str) -> int:
        found = self._execute(
            "SELECT sequence FROM records WHERE run = ? ORDER BY sequence DESC LIMIT 1", (self.number(run_id),)
        ).fetchone()
        return 0 if found is None else int(found[0])

    def ends_of(self, runs: Mapping[str, int]) -> dict[str, builtins.list[Record]]:
        names = {self.number(run_id): run_id for run_id in runs}
        ends: dict[str, builtins.list[Record]] = {run_id: [] for run_id in runs}
        given = json_text([*zip(names, runs.values(), strict=True)])
        for number, *values in self._fetch(_ENDS_OF, (given, *ENDS)):
            ends[names[number]].append(record_of(values))
        return ends

    def remove_records(self, run_id: str, sequences: Sequence[int]) -> int:
        found = self._execute(
            "DELETE FROM records WHERE run = ? AND sequence IN (SELECT value FROM json_each(?))",
            (self.number(run_id), json_text(sequences)),
        )
        return found.rowcount

    # -- statements of users -----------------------------------------------------------------------

    def perform(self, statements: Sequence[Statement]) -> None:
        perform(self._connection, statements)


@functools.lru_cache(1000)
def _with_tables(query: str) -> str:
    """Put the names of the tables in for `{runs}`, `{records}` and `{signals}`."""
    return re.sub(r"\{(\w+)\}", r"\1", query)


def _is_undecodable(exc: sqlite3.OperationalError) -> bool:
    # It has no code of SQLite: Python's own module raises it, on a text that is no UTF-8.
    return "decode to UTF-8" in str(exc)


def _replacing(text: bytes) -> str:
    return text.decode("utf-8", "replace")
