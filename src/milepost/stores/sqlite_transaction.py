"""The primitives of a transaction in SQL. All statements of the SQLite store but the fast append are here.

Values are only ever bound, never put into a statement's text.
"""

from __future__ import annotations

import builtins
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from milepost.fence import Row
from milepost.record import Record, format_time, parse_time
from milepost.store import Ranges, Signal, Wait
from milepost.stores.transaction import Entry, Note, Transaction

__all__ = ["SQLTransaction", "record_values"]

_LAST = (1 << 63) - 1

_ROW_COLUMNS = (
    "run_id, flow, status, created_at, updated_at, epoch, nonce, owner, lease, lease_until, reason, wake_at, waiting, "
    "crash_count, crashed_at, signals, cancel, degraded, missed, tags, live, worked, sequence"
)
_SELECT_ROW = f"SELECT {_ROW_COLUMNS}, id FROM runs"  # noqa: S608
_INSERT_ROW = f"INSERT INTO runs ({_ROW_COLUMNS}) VALUES ({', '.join('?' * 23)})"  # noqa: S608
_UPDATE_ROW = f"UPDATE runs SET ({_ROW_COLUMNS}) = ({', '.join('?' * 23)}) WHERE id = ?"  # noqa: S608

# A damaged header must come out as bytes, not as an error of the text decoder: hence the casts.
_ENTRY_COLUMNS = "sequence, kind, node_id, visit, size, CAST(header AS BLOB), packing, note"
_RECORD_COLUMNS = "sequence, kind, node_id, visit, size, CAST(header AS BLOB), packing, payload"
_INSERT_RECORD = (
    "INSERT INTO records (run, sequence, kind, node_id, visit, size, packing, header, payload, note) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_BY_NUMBER = "FROM records WHERE run = ? AND sequence BETWEEN ? AND ?"
_BY_NODE = (
    "FROM records INDEXED BY records_by_node WHERE node_id <> '' AND run = ? AND sequence BETWEEN ? AND ? "
    "AND node_id = ?"
)

_encode = msgspec.json.Encoder().encode
_decode_waits = msgspec.json.Decoder(tuple[Wait, ...]).decode
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_tags = msgspec.json.Decoder(dict[str, str]).decode
_decode_live: Any = msgspec.json.Decoder(Ranges).decode
_decode_note = msgspec.json.Decoder(dict[str, Any]).decode


# One step of the index from each node to the next, however many records a node has. SQLite has no loose index scan.
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


class SQLTransaction(Transaction):
    """An open transaction of a connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute
        self._numbers: dict[str, int] = {}

    # -- rows --------------------------------------------------------------------------------------

    def row(self, run_id: str) -> Row | None:
        found = self._execute(f"{_SELECT_ROW} WHERE run_id = ?", (run_id,)).fetchone()
        return None if found is None else self._row(found)

    def _row(self, values: Sequence[Any]) -> Row:
        row = Row(*values[:23])
        self._numbers[row.run_id] = values[23]
        return replace(
            row,
            waiting=_decode_waits(values[12]) if values[12] != "[]" else (),
            degraded=bool(row.degraded),
            missed=_decode_names(values[18]) if values[18] != "[]" else (),
            tags=_decode_tags(values[19]) if values[19] != "{}" else {},
            live=_decode_live(values[20]) if values[20] != "[]" else (),
            worked=bool(row.worked),
        )

    def number(self, run_id: str) -> int:
        """The run's `id`, -1 (before all others) if there is no such run."""
        number = self._numbers.get(run_id)
        if number is None:
            found = self._execute("SELECT id FROM runs WHERE run_id = ?", (run_id,)).fetchone()
            number = self._numbers[run_id] = -1 if found is None else found[0]
        return number

    def add_row(self, row: Row) -> None:
        cursor = self._execute(_INSERT_ROW, _row_values(row))
        self._numbers[row.run_id] = cursor.lastrowid or 0

    def put_row(self, row: Row) -> None:
        self._execute(_UPDATE_ROW, (*_row_values(row), self.number(row.run_id)))

    def page(
        self,
        *,
        flow: str | None,
        statuses: Collection[str] | None,
        tags: Mapping[str, str],
        updated_before: float | None,
        updated_after: float | None,
        limit: int,
        after: str | None,
    ) -> builtins.list[Row]:
        terms: builtins.list[str] = []
        values: builtins.list[Any] = []
        for term, value in (
            ("id < (SELECT id FROM runs WHERE run_id = ?)", after),
            ("flow = ?", flow),
            ("updated_at < ?", updated_before),
            ("updated_at > ?", updated_after),
            ("status IN (SELECT value FROM json_each(?))", None if statuses is None else _json(list(statuses))),
        ):
            if value is not None:
                terms.append(term)
                values.append(value)
        for pair in tags.items():
            terms.append("EXISTS (SELECT 1 FROM json_each(tags) WHERE key = ? AND value = ?)")
            values += pair
        # `+` keeps these terms from an index that would need sorting: a page is read in the order of `id`.
        where = " AND ".join(term if term.startswith("id") else f"+{term}" for term in terms)
        found = self._execute(
            f"{_SELECT_ROW} {'WHERE ' + where if where else ''} ORDER BY id DESC LIMIT ?", (*values, limit)
        )
        return [self._row(values) for values in found.fetchall()]

    def candidates(self, flow: str, now: float, limit: int) -> builtins.list[Row]:
        rows: dict[int, Sequence[Any]] = {}
        for term, values in (
            ("status = 'running' LIMIT -1", (flow,)),
            ("cancel IS NOT NULL LIMIT -1", (flow,)),
            ("status = 'ready' AND wake_at IS NULL ORDER BY id LIMIT ?", (flow, limit)),
            ("status = 'ready' AND wake_at <= ? ORDER BY id LIMIT ?", (flow, now, limit)),
            ("status = 'waiting' AND wake_at <= ? ORDER BY id LIMIT ?", (flow, now, limit)),
            ("status = 'interrupted' AND worked ORDER BY id LIMIT ?", (flow, limit)),
        ):
            for found in self._execute(f"{_SELECT_ROW} WHERE flow = ? AND {term}", values).fetchall():
                rows[found[-1]] = found
        return [self._row(rows[number]) for number in sorted(rows)]

    # -- records -----------------------------------------------------------------------------------

    def _span(self, run_id: str, after: int = -1, before: int | None = None) -> tuple[int, int, int]:
        """The run's `id`, and the lowest and the highest sequence between two, which are excluded."""
        return self.number(run_id), min(after, _LAST) + 1, _LAST if before is None else min(before, _LAST) - 1

    def insert(self, run_id: str, records: Sequence[Record], note: Note | None = None) -> None:
        number = self.number(run_id)
        noted = None
        if note is not None:
            noted = _json({"timestamp": format_time(note.timestamp), "next_node": note.next_node})
        for record in records:
            self._execute(_INSERT_RECORD, (number, *record_values(record), noted))

    def newest(self, run_id: str) -> int:
        found = self._execute(
            f"SELECT sequence {_BY_NUMBER} ORDER BY sequence DESC LIMIT 1", self._span(run_id)
        ).fetchone()
        return 0 if found is None else int(found[0])

    def records(
        self,
        run_id: str,
        *,
        after: int = -1,
        before: int | None = None,
        kinds: Collection[str] | None = None,
        node_id: str | None = None,
        newest: bool = False,
        limit: int | None = None,
    ) -> builtins.list[Record]:
        span = self._span(run_id, after, before)
        return [_record(values) for values in self._select(_RECORD_COLUMNS, span, kinds, node_id, newest, limit)]

    def newest_checkpoint(
        self, run_id: str, *, after: int = -1, before: int | None = None, node_id: str | None = None
    ) -> Entry | None:
        span = self._span(run_id, after, before)
        found = self._select(_ENTRY_COLUMNS, span, ("checkpoint",), node_id, newest=True, limit=1)
        return _entry(found[0]) if found else None

    def _select(
        self,
        columns: str,
        span: tuple[int, int, int],
        kinds: Collection[str] | None = None,
        node_id: str | None = None,
        newest: bool = False,
        limit: int | None = None,
    ) -> builtins.list[Any]:
        query, values = _BY_NUMBER, builtins.list[Any](span)
        if node_id:
            query, values = _BY_NODE, [*span, node_id]
        elif node_id is not None:
            query += " AND node_id = ''"  # records of no node, which are few, are in no index
        if kinds is not None:
            query += f" AND kind IN ({', '.join('?' * len(kinds))})"
            values += kinds
        query = f"SELECT {columns} {query} ORDER BY sequence {'DESC' if newest else 'ASC'} LIMIT ?"
        return self._execute(query, (*values, -1 if limit is None else limit)).fetchall()

    def find_visit(self, run_id: str, node_id: str, visit: int) -> Record | None:
        found = self._execute(
            f"SELECT {_RECORD_COLUMNS} {_BY_NODE} AND kind = 'checkpoint' AND visit = ? ORDER BY sequence DESC LIMIT 1",
            (*self._span(run_id), node_id, visit),
        ).fetchone()
        return None if found is None else _record(found)

    def last_visit(self, run_id: str, node_id: str) -> int:
        checkpoint = self._select("sequence", self._span(run_id), ("checkpoint",), node_id, newest=True, limit=1)
        after = checkpoint[0][0] - 1 if checkpoint else -1
        found = self._execute(f"SELECT max(visit) {_BY_NODE}", (*self._span(run_id, after), node_id)).fetchone()
        return found[0] or 0

    def entries(self, run_id: str) -> builtins.list[Entry]:
        return [_entry(values) for values in self._select(_ENTRY_COLUMNS, self._span(run_id), ("checkpoint",))]

    def node_ids(self, run_id: str) -> builtins.list[str]:
        number = self.number(run_id)
        return [values[0] for values in self._execute(_NODE_IDS, (number, number)).fetchall()]

    def remove_node(self, run_id: str, node_id: str) -> int:
        return self._execute(f"DELETE {_BY_NODE} AND kind <> 'owner'", (*self._span(run_id), node_id)).rowcount

    def remove_run(self, run_id: str) -> None:
        number = self.number(run_id)
        self._execute("DELETE FROM records WHERE run = ?", (number,))
        self._execute("DELETE FROM signals WHERE run = ?", (number,))
        self._execute("DELETE FROM runs WHERE id = ?", (number,))
        del self._numbers[run_id]

    # -- signals -----------------------------------------------------------------------------------

    def signals(self, run_id: str, after: int = 0) -> builtins.list[Signal]:
        found = self._execute(
            "SELECT number, name, payload, signal_id, wait_id, sent_at FROM signals WHERE run = ? AND number > ? "
            "ORDER BY number",
            (self.number(run_id), after),
        )
        return [Signal(*values) for values in found.fetchall()]

    def has_signal(self, run_id: str, signal_id: str) -> bool:
        found = self._execute("SELECT 1 FROM signals WHERE run = ? AND signal_id = ?", (self.number(run_id), signal_id))
        return found.fetchone() is not None

    def add_signal(self, run_id: str, signal: Signal) -> None:
        self._execute(
            "INSERT INTO signals (run, number, name, payload, signal_id, wait_id, sent_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (self.number(run_id), *signal),
        )


def record_values(record: Record) -> tuple[Any, ...]:
    """The bound values of a record, but for run and note."""
    sequence, kind, node_id, visit, size, header, payload, packing = record
    text = None if header is None else (header + b"}").decode()
    return sequence, kind, node_id, visit, size, packing, text, payload


def _row_values(row: Row) -> tuple[Any, ...]:
    return (
        row.run_id,
        row.flow,
        row.status,
        row.created_at,
        row.updated_at,
        row.epoch,
        row.nonce,
        row.owner,
        row.lease,
        row.lease_until,
        _text(row.reason),
        row.wake_at,
        _json(row.waiting) if row.waiting else "[]",
        row.crash_count,
        row.crashed_at,
        row.signals,
        None if row.cancel is None else _text(row.cancel),
        row.degraded,
        _json(row.missed) if row.missed else "[]",
        _json(row.tags) if row.tags else "{}",
        _json(row.live) if row.live else "[]",
        row.worked,
        row.sequence,
    )


def _text(value: str) -> str:
    # A reason may quote any exception, lone surrogates included, which UTF-8 can't carry.
    return value.encode("utf-8", "replace").decode()


def _json(value: Any) -> str:
    return _encode(value).decode()


def _record(values: Sequence[Any]) -> Record:
    sequence, kind, node_id, visit, size, header, packing, payload = values
    return Record(sequence, kind, node_id, visit, size, _open_header(header), payload, packing)


def _entry(values: Sequence[Any]) -> Entry:
    sequence, kind, node_id, visit, size, header, packing, note = values
    record = Record(sequence, kind, node_id, visit, size, _open_header(header), None, packing)
    if note is None:
        return Entry(record, None)
    fields = _decode_note(note)
    return Entry(record, Note(parse_time(fields["timestamp"]).timestamp(), fields["next_node"]))


def _open_header(header: bytes | None) -> bytes | None:
    return header[:-1] if header is not None and header.endswith(b"}") else header
