"""The primitives of a transaction in PostgreSQL.

In a write `row` and `candidates` lock the rows that they return, so that these do not change until the write ends.
Other facts about a run are read after its row is locked.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any, Unpack, get_args

from milepost.model.ids import is_gone, this_process
from milepost.model.record import CHECKPOINT, Record
from milepost.store import Statement, Status
from milepost.stores.base.fence import Row
from milepost.stores.base.sql import SQLTransaction
from milepost.stores.base.transaction import (
    ENDS,
    DamagedRow,
    RecordEntry,
    RowFilters,
    WriteConflict,
    entry_of,
    record_of,
    record_values,
    row_of,
    row_to_show,
)
from milepost.stores.postgres import user_statements as postgres_user_statements
from milepost.stores.postgres.connection import Link, Preparing, is_lost_statement
from milepost.stores.postgres.driver import psycopg
from milepost.stores.postgres.statements import (
    BY_NODE,
    DUE,
    ENDS_OF,
    ENTRY_COLUMNS,
    FACTS,
    FLOWS,
    INSERT_RECORD,
    INSERT_RECORDS,
    INSERT_ROW,
    LIVE_ENTRIES,
    LIVE_NODES,
    NEWEST,
    NEWEST_COLUMNS,
    NODE_IDS,
    OWNED,
    OWNER_NAMES,
    RECORD_COLUMNS,
    RESTED,
    ROW_COLUMNS,
    ROW_NAMES,
    ROW_WIDTH,
    RUNNING,
    TAKE,
    TALLY,
    UPDATE_ROW,
    Tables,
    columns_of_row,
    page_of,
)

_MANY = 500
"""Greatest number of records that one statement inserts."""


class PostgresTransaction(SQLTransaction):
    """An open transaction of a connection. With `is_write` it locks the rows of runs that it returns.

    `restart` begins it again. `abandoned` returns the runs whose verbs in this process have ended without a release.
    """

    by_node = BY_NODE
    entry_columns = ENTRY_COLUMNS
    record_columns = RECORD_COLUMNS
    node_id_query = NODE_IDS
    live_entry_query = LIVE_ENTRIES
    live_node_query = LIVE_NODES
    tally_query = TALLY
    flow_query = FLOWS
    changed_after = "status = ? AND rested_at > ?"
    unlimited = None

    def __init__(
        self,
        link: Link,
        tables: Tables,
        preparing: Preparing,
        restart: Callable[[], None],
        abandoned: Callable[[], builtins.list[str]],
        *,
        is_write: bool,
    ) -> None:
        self._link = link
        self._cursor = link.cursor
        self._tables = tables
        self._preparing = preparing
        self._restart = restart
        self._abandoned = abandoned
        self._is_write = is_write
        self._is_fresh = True
        """True until something is read."""
        self._numbers, self._lives = {}, {}
        self._facts: dict[str, tuple[int, RecordEntry | None]] = {}
        """The newest number and the newest checkpoint of runs that were asked about."""

    def _execute(self, query: str, values: Any) -> psycopg.Cursor[Any]:
        statement = self._tables(query)
        try:
            with self._link.timer:
                cursor = self._cursor.execute(
                    statement, values, prepare=None if self._preparing.is_on else False, binary=True
                )
        except psycopg.Error as exc:
            self._link.note_error(exc)
            if not is_lost_statement(exc):
                raise
            self._preparing.give_up(f"they get lost between here and the server ({exc})")
            if not self._is_fresh:
                raise WriteConflict from exc
            self._restart()
            with self._link.timer:
                cursor = self._cursor.execute(statement, values, prepare=False, binary=True)
        self._is_fresh = False
        return cursor

    def _fetch(self, query: str, values: Any) -> builtins.list[Any]:
        """Fetch all rows of a query. There are none if it asks for a text that no database stores."""
        try:
            return self._execute(query, values).fetchall()
        except UnicodeEncodeError:  # a lone surrogate; nothing was sent
            return []

    # -- rows --------------------------------------------------------------------------------------

    def row(self, run_id: str) -> Row | None:
        if self._is_write:
            query = f"SELECT {ROW_COLUMNS} FROM {{runs}} WHERE run_id = %s FOR UPDATE"  # noqa: S608
        else:
            query = f"SELECT {ROW_COLUMNS}, {NEWEST_COLUMNS} FROM {{runs}} {NEWEST} WHERE run_id = %s"  # noqa: S608
        found = self._execute(query, (run_id,)).fetchone()
        return None if found is None else self._row(found)

    def _row(self, values: Sequence[Any]) -> Row:
        self._note(values)
        return row_of(values[:ROW_WIDTH])

    def _row_to_show(self, values: Sequence[Any]) -> Row:
        """Return the row, or what is left of a damaged one."""
        try:
            return self._row(values)
        except DamagedRow as exc:
            return row_to_show(values, exc)

    def _note(self, values: Sequence[Any]) -> None:
        """Remember the facts that came with a row: its `id`, and in a read the newest of its records."""
        self._lives[values[0]], self._numbers[values[0]] = values[ROW_WIDTH - 2 : ROW_WIDTH]
        if len(values) > ROW_WIDTH:
            self._facts[values[0]] = _facts_of(values[ROW_WIDTH:])

    def add_row(self, row: Row) -> None:
        found = self._execute(INSERT_ROW, columns_of_row(row)).fetchone()
        if found is None:
            raise WriteConflict
        self._numbers[row.run_id], self._lives[row.run_id] = found[0], row.life

    def put_row(self, row: Row) -> None:
        self._execute(UPDATE_ROW, (*columns_of_row(row), self.number(row.run_id)))

    def take(self, row: Row, record: Record) -> None:
        number, before = self.number(row.run_id), record.sequence - 1
        columns = dict(zip(ROW_NAMES, columns_of_row(row), strict=True))
        owner = [columns[name] for name in OWNER_NAMES]
        values = (*owner, number, number, before, before, *record_values(record))
        if not self._execute(TAKE, values).rowcount:
            raise WriteConflict
        if row.run_id in self._facts:
            self._facts[row.run_id] = _with_records(*self._facts[row.run_id], (record,))

    def page(self, *, limit: int, after: str | int | None = None, **filters: Unpack[RowFilters]) -> builtins.list[Row]:
        found, values = self._found(after, limit, filters)
        if not found:
            return []
        query = f"""
            SELECT {ROW_COLUMNS}, {NEWEST_COLUMNS} FROM (
                SELECT * FROM ({found}) AS found ORDER BY id DESC LIMIT %s
            ) AS runs {NEWEST} ORDER BY id DESC
        """  # noqa: S608
        return [self._row_to_show(found) for found in self._fetch(query, (*values, limit))]

    def count(self, limit: int, **filters: Unpack[RowFilters]) -> int:
        found, values = self._found(None, limit, filters)
        query = f"SELECT count(*) FROM (SELECT FROM ({found}) AS found LIMIT %s) AS counted"  # noqa: S608
        counted = self._fetch(query, (*values, limit)) if found else []
        return counted[0][0] if counted else 0

    def _place(self, place: int, below: int | None, filters: RowFilters) -> tuple[int, str] | None:
        found, values = self._found(below, place, filters)
        query = f"SELECT id, run_id FROM ({found}) AS found ORDER BY id DESC OFFSET %s LIMIT 1"  # noqa: S608
        rows = self._fetch(query, (*values, place - 1)) if found else []
        return rows[0] if rows else None

    def _found(self, after: str | int | None, limit: int, filters: RowFilters) -> tuple[str, builtins.list[Any]]:
        """Return the query for up to `limit` rows below `after` of each status, and its values; "" if none can match.

        There is one part for each status, because the index serves each. Without limits of their own the server would
        sort them all.
        """
        statuses = filters.get("statuses")
        wanted = [None] if statuses is None else [status for status in get_args(Status) if status in statuses]
        below = self.number(after) if isinstance(after, str) else after
        few = {status: None if filters.get("tags") else self._few(status, filters) for status in wanted}
        parts = [page_of(status, filters, limit=limit, below=below, few=few[status]) for status in wanted]
        values = [value for _, bound in parts for value in bound]
        if any(isinstance(value, str) and "\0" in value for value in values):
            return "", []
        return " UNION ALL ".join(query for query, _ in parts), values

    def rested(
        self, status: str, *, after: tuple[float, str], until: float, limit: int
    ) -> builtins.list[tuple[float, str]]:
        query = RUNNING if status == "running" else RESTED
        return self._fetch(query, (status, *after, until, limit))

    def candidates(self, flow: str, now: float, limit: int, skip: Collection[str] = ()) -> builtins.list[Row]:
        if "\0" in flow:
            return []
        # No run has an id that no database can store.
        left_out = [
            run_id for run_id in skip if "\0" not in run_id and run_id.encode("utf-8", "replace").decode() == run_id
        ]
        known = {"flow": flow, "now": now, "limit": limit, "skip": left_out}
        over = self._over(known)
        passed: builtins.list[int] = []
        whole: dict[int, Row] = {}
        while True:
            given = {**known, "over": [*over], "epochs": [*over.values()], "passed": passed}
            found = self._fetch(DUE, given)
            rows = {values[ROW_WIDTH - 1]: self._whole_row(values) for values in found}
            whole |= {number: row for number, row in rows.items() if row is not None}
            # There may be more behind damaged ones.
            if None not in rows.values() or len(whole) >= limit:
                break
            passed += rows
        for number in over.keys() & whole.keys():  # an owner may have written after its records were read
            self._facts.pop(whole[number].run_id, None)
        return [whole[number] for number in sorted(whole)]

    def _over(self, known: Mapping[str, Any]) -> dict[int, int]:
        """Return the numbers and epochs of runs whose owners have ended without a release; the oldest if there are many."""
        machine = this_process().name.rpartition(":")[0].rpartition(":")[0]
        abandoned = self._abandoned()
        found = self._fetch(OWNED, {**known, "machine": machine, "abandoned": abandoned})
        groups = [zip(*group, strict=True) for owner, *group in found if not owner or is_gone(owner)]
        # Not all of these are due: others may have taken abandoned ones, and some are to be skipped.
        most = known["limit"] + len(abandoned) + len(known["skip"])
        return dict(sorted(chain.from_iterable(groups))[:most])

    def _whole_row(self, values: Sequence[Any]) -> Row | None:
        """Return the row, or None if it is damaged: other runs must go on, and a reader of this one gets the error."""
        try:
            return self._row(values)
        except DamagedRow:
            return None

    # -- records -----------------------------------------------------------------------------------

    def insert(self, run_id: str, records: Sequence[Record]) -> None:
        if not records:
            return
        number = self.number(run_id)
        if len(records) == 1:
            self._execute(INSERT_RECORD, (number, *record_values(records[0])))
        else:
            for first in range(0, len(records), _MANY):
                columns = zip(*map(record_values, records[first : first + _MANY]), strict=True)
                self._execute(INSERT_RECORDS, (number, *map(builtins.list, columns)))
        if run_id in self._facts:
            self._facts[run_id] = _with_records(*self._facts[run_id], records)

    def newest(self, run_id: str) -> int:
        return self._facts_about(run_id)[0]

    def _facts_about(self, run_id: str) -> tuple[int, RecordEntry | None]:
        facts = self._facts.get(run_id)
        if facts is None:
            facts = _facts_of(self._fetch(FACTS, (self.number(run_id),))[0])
            self._facts[run_id] = facts
        return facts

    def records(self, run_id: str, *, kinds: Collection[str] | None = None, **sought: Any) -> builtins.list[Record]:
        if kinds is not None and {*kinds} == {CHECKPOINT} and self._facts.get(run_id, (0, True))[1] is None:
            return []
        return super().records(run_id, kinds=kinds, **sought)

    def newest_checkpoint(
        self, run_id: str, *, after: int = -1, before: int | None = None, node_id: str | None = None
    ) -> RecordEntry | None:
        if after == -1 and before is None and node_id is None:
            return self._facts_about(run_id)[1]
        return super().newest_checkpoint(run_id, after=after, before=before, node_id=node_id)

    def ends_of(self, runs: Mapping[str, int]) -> dict[str, builtins.list[Record]]:
        names, numbers = [*runs], [self.number(run_id) for run_id in runs]
        ends: dict[str, builtins.list[Record]] = {run_id: [] for run_id in names}
        for place, *values in self._fetch(ENDS_OF, (numbers, [*runs.values()], [*ENDS])):
            ends[names[place - 1]].append(record_of(values))
        return ends

    def remove_node(self, run_id: str, node_id: str) -> int:
        self._facts.pop(run_id, None)
        return super().remove_node(run_id, node_id)

    def remove_run(self, run_id: str) -> None:
        super().remove_run(run_id)
        self._facts.pop(run_id, None)

    def remove_records(self, run_id: str, sequences: Sequence[int]) -> int:
        self._facts.pop(run_id, None)
        query = "DELETE FROM {records} WHERE run = %s AND sequence = ANY(%s)"
        return self._execute(query, (self.number(run_id), builtins.list(sequences))).rowcount

    # -- statements of users -----------------------------------------------------------------------

    def perform(self, statements: Sequence[Statement]) -> None:
        postgres_user_statements.perform(self._link, statements)


def _facts_of(values: Sequence[Any]) -> tuple[int, RecordEntry | None]:
    newest, *entry = values
    return newest or 0, None if entry[0] is None else entry_of(entry)


def _with_records(
    newest: int, checkpoint: RecordEntry | None, records: Sequence[Record]
) -> tuple[int, RecordEntry | None]:
    """Return what `_facts_of` would return after these records were inserted."""
    for record in records:
        newest = max(newest, record.sequence)
        if record.kind == CHECKPOINT and (checkpoint is None or record.sequence > checkpoint.record.sequence):
            checkpoint = RecordEntry(record._replace(payload=None))
    return newest, checkpoint
