"""The primitives of a transaction that databases with SQL have in common.

The statements here have `?` for each value and `{runs}`, `{records}` and `{signals}` for the tables. `_execute` of a
subclass turns them into statements of its database. What a database can do faster, or words differently, it does itself.
"""

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Unpack

from milepost.model.ranges import Ranges
from milepost.model.record import CHECKPOINT, Record
from milepost.store import MAX_ID_BYTES, Signal
from milepost.stores.base.transaction import (
    RecordEntry,
    RowFilters,
    StatusCount,
    Transaction,
    Walk,
    entry_of,
    live_spans,
    record_of,
    record_values,
)

_LAST = (1 << 63) - 1
_BY_NUMBER = "FROM {records} WHERE run = ? AND sequence BETWEEN ? AND ?"
_FROM_CHECKPOINT = f"""
FROM {{records}} WHERE run = ? AND sequence BETWEEN (
    SELECT sequence {_BY_NUMBER} AND kind = 'checkpoint' ORDER BY sequence DESC LIMIT 1
) AND ? ORDER BY sequence
"""
"""The newest checkpoint between two numbers, with all records after it up to a third, for after a `SELECT`."""
_FIRST_CREATED_AFTER = (
    "SELECT min(id) FROM (SELECT id FROM {runs} WHERE created_at > ? ORDER BY created_at LIMIT ?) AS found"
)
_LAST_CREATED_BEFORE = (
    "SELECT max(id) FROM (SELECT id FROM {runs} WHERE created_at < ? ORDER BY created_at DESC LIMIT ?) AS found"
)
_DISORDER = 1000
"""The number of runs next to a time of creation whose positions are compared: so far they may stand in another order."""
_FEW = 10_000
_CHECKED = ("updated_before", "updated_after", "run_id_prefix")
"""The filters that are compared with each row of a walk."""
_COMPARED = (*_CHECKED, "flow", "statuses")
"""The filters that are compared with each row that has a tag."""
_PUT_PAYLOAD = "UPDATE {records} SET packing = ?, header = ?, payload = ? WHERE run = ? AND sequence = ?"


class SQLTransaction(Transaction):
    """An open transaction of a database with SQL."""

    by_node: ClassVar[str]
    """The records of one node of a run between two numbers, for after a `SELECT` or `DELETE`."""
    entry_columns: ClassVar[str]
    record_columns: ClassVar[str]
    node_id_query: ClassVar[str]
    live_entry_query: ClassVar[str]
    """Fetches the newest checkpoint of each node of a run between two numbers, by steps through an index."""
    live_node_query: ClassVar[str]
    """Fetches the ids of the nodes of a run that have a checkpoint between two numbers, in the same way."""
    tally_query: ClassVar[str]
    changed_after: ClassVar[str]
    """The condition for the rows of a status, other than "running", that were changed after a time."""
    flow_query: ClassVar[str]
    """Fetches names of flows that have runs, by steps through an index from each to the next."""
    unlimited: ClassVar[int | None]
    """The value after `LIMIT` that stands for no limit."""

    _numbers: dict[str, int]
    """The `id` of each run that was looked up."""
    _lives: dict[str, str]
    """The life of each run whose row was looked up."""

    @abstractmethod
    def _execute(self, query: str, values: Any) -> Any:
        """Execute a statement, and return its cursor."""

    @abstractmethod
    def _fetch(self, query: str, values: Any) -> builtins.list[Any]:
        """Fetch all rows of a query. There are none if it asks for a text that no database stores."""

    def number(self, run_id: str) -> int:
        """Return the run's `id`, or -1 (before all others) if there is no such run."""
        number = self._numbers.get(run_id)
        if number is None:
            found = self._fetch("SELECT id, life FROM {runs} WHERE run_id = ?", (run_id,))
            number, life = found[0] if found else (-1, "")
            self._numbers[run_id], self._lives[run_id] = number, life
        return number

    def life(self, run_id: str) -> str | None:
        return None if self.number(run_id) < 0 else self._lives[run_id]

    def position(self, run_id: str) -> int | None:
        number = self.number(run_id)
        return None if number < 0 else number

    def walk(self, after: str | int | None, most: int, **filters: Unpack[RowFilters]) -> Walk:
        below = self.number(after) if isinstance(after, str) else after
        above = None
        if (moment := filters.get("created_after")) is not None:
            (first,) = self._fetch(_FIRST_CREATED_AFTER, (moment, _DISORDER))[0]
            above = _LAST if first is None else first - 1
        if (moment := filters.get("created_before")) is not None:
            (last,) = self._fetch(_LAST_CREATED_BEFORE, (moment, _DISORDER))[0]
            below = min(_LAST if below is None else below, 0 if last is None else last + 1)
        statuses, tags = filters.get("statuses"), filters.get("tags") or {}
        walked: RowFilters = {"flow": filters.get("flow"), "statuses": statuses, "above": above}
        if tags:
            is_checked = len(tags) > 1 or any(filters.get(name) is not None for name in _COMPARED)
            walked = {"tags": dict([next(iter(tags.items()))]), "above": above}
        else:
            is_checked = any(filters.get(name) for name in _CHECKED) and any(
                status != "running" and self._few(status, filters) is None
                for status in ([None] if statuses is None else statuses)
            )
        end = self._place(most, below, walked) if is_checked else None
        return Walk(below, above) if end is None else Walk(below, end[0] - 1, end[1])

    @abstractmethod
    def _place(self, place: int, below: int | None, filters: RowFilters) -> tuple[int, str] | None:
        """Return `id` and run id of the row at this place of a page, counted from 1; None if there are fewer rows."""

    def _few(self, status: str | None, filters: RowFilters) -> tuple[str, Sequence[Any]] | None:
        """Return a condition, and its values, by which an index leads to few rows, and to all of a status that match.

        Those are put in order, instead of a walk in that order. None: an index does not, or leads to many.
        """
        prefix, changed_after = filters.get("run_id_prefix"), filters.get("updated_after")
        conditions: builtins.list[tuple[str, Sequence[Any]]] = []
        if prefix and "\0" not in prefix:
            conditions.append(("run_id BETWEEN ? AND ?", (prefix, prefix + "\U0010ffff" * (MAX_ID_BYTES // 4))))
        if changed_after is not None and status not in {None, "running"}:
            conditions.append((self.changed_after, (status, changed_after)))
        for condition, values in conditions:
            query = f"SELECT count(*) FROM (SELECT 1 FROM {{runs}} WHERE {condition} LIMIT ?) AS found"  # noqa: S608
            found = self._fetch(query, (*values, _FEW + 1))
            if not found or found[0][0] <= _FEW:
                return condition, values
        return None

    def tally(self) -> builtins.list[StatusCount]:
        return [StatusCount(*values) for values in self._fetch(self.tally_query, ())]

    def flows(self, limit: int) -> builtins.list[str]:
        return [values[0] for values in self._fetch(self.flow_query, (limit,))]

    # -- records -----------------------------------------------------------------------------------

    def _span(self, run_id: str, after: int = -1, before: int | None = None) -> tuple[int, int, int]:
        """Return the run's `id`, and the lowest and the highest sequence between `after` and
        `before`, which are excluded."""
        return self.number(run_id), min(after, _LAST - 1) + 1, _LAST if before is None else min(before, _LAST) - 1

    def put_payload(self, run_id: str, record: Record) -> None:
        self._execute(_PUT_PAYLOAD, (*record_values(record)[5:], self.number(run_id), record.sequence))

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
        return [record_of(values) for values in self._select(self.record_columns, span, kinds, node_id, newest, limit)]

    def newest_checkpoint(
        self, run_id: str, *, after: int = -1, before: int | None = None, node_id: str | None = None
    ) -> RecordEntry | None:
        span = self._span(run_id, after, before)
        found = self._select(self.entry_columns, span, (CHECKPOINT,), node_id, newest=True, limit=1)
        return entry_of(found[0]) if found else None

    def _select(
        self,
        columns: str,
        span: tuple[int, int, int],
        kinds: Collection[str] | None = None,
        node_id: str | None = None,
        newest: bool = False,
        limit: int | None = None,
    ) -> builtins.list[Any]:
        if "\0" in (node_id or "") or (
            kinds is not None and not kinds
        ):  # no id has a NUL, which not every text can hold
            return []
        query, values = _BY_NUMBER, builtins.list[Any](span)
        if node_id:
            query, values = self.by_node, [*span, node_id]
        elif node_id is not None:
            query += " AND node_id = ''"  # records of no node, which are few, are in no index
        if kinds is not None:
            query += f" AND kind IN ({', '.join('?' * len(kinds))})"
            values += kinds
        query = f"SELECT {columns} {query} ORDER BY sequence {'DESC' if newest else 'ASC'} LIMIT ?"
        return self._fetch(query, (*values, self.unlimited if limit is None else limit))

    def point(
        self, run_id: str, live: Ranges, *, before: int | None = None
    ) -> tuple[Record | None, builtins.list[Record]]:
        query = f"SELECT {self.record_columns} {_FROM_CHECKPOINT}"
        _, _, last = self._span(run_id, before=before)
        for after, end in live_spans(live, before):
            span = self._span(run_id, after, end)
            found = self._fetch(query, (span[0], *span, last))
            if found:
                checkpoint, *later = [record_of(values) for values in found]
                return checkpoint, later
        return None, self.records(run_id, before=before)

    def live_nodes(self, run_id: str, live: Ranges, before: int) -> tuple[str, ...]:
        if before <= 1:  # there is nothing but the start
            return ()
        nodes: set[str] = set()
        for after, end in live_spans(live, before):
            number, first, last = self._span(run_id, after, end)
            nodes.update(
                values[0] for values in self._fetch(self.live_node_query, (number, number, number, first, last))
            )
        return tuple(sorted(nodes))

    def find_visit(self, run_id: str, node_id: str, visit: int) -> Record | None:
        query = (
            f"SELECT {self.record_columns} {self.by_node} AND kind = 'checkpoint' AND visit = ? "
            f"ORDER BY sequence DESC LIMIT 1"
        )
        found = self._fetch(query, (*self._span(run_id), node_id, visit))
        return record_of(found[0]) if found else None

    def last_visit(self, run_id: str, node_id: str) -> int:
        checkpoint = self._select("sequence", self._span(run_id), (CHECKPOINT,), node_id, newest=True, limit=1)
        after = checkpoint[0][0] - 1 if checkpoint else -1
        found = self._fetch(f"SELECT max(visit) {self.by_node}", (*self._span(run_id, after), node_id))
        return found[0][0] or 0 if found else 0

    def entries(self, run_id: str) -> builtins.list[RecordEntry]:
        return [entry_of(values) for values in self._select(self.entry_columns, self._span(run_id), (CHECKPOINT,))]

    def live_entries(self, run_id: str, live: Ranges) -> builtins.list[RecordEntry]:
        newest: dict[str, RecordEntry] = {}
        for after, before in live_spans(live, None):
            number, first, last = self._span(run_id, after, before)
            for values in self._fetch(self.live_entry_query, (number, number, number, first, last)):
                entry = entry_of(values)
                newest.setdefault(entry.record.node_id, entry)
        return sorted(newest.values(), key=lambda entry: entry.record.sequence)

    def node_ids(self, run_id: str) -> builtins.list[str]:
        number = self.number(run_id)
        return [values[0] for values in self._fetch(self.node_id_query, (number, number))]

    def remove_node(self, run_id: str, node_id: str) -> int:
        removed = self._execute(f"DELETE {self.by_node} AND kind <> 'owner'", (*self._span(run_id), node_id))
        return int(removed.rowcount)

    def remove_run(self, run_id: str) -> None:
        number = self.number(run_id)
        self._execute("DELETE FROM {records} WHERE run = ?", (number,))
        self._execute("DELETE FROM {signals} WHERE run = ?", (number,))
        self._execute("DELETE FROM {runs} WHERE id = ?", (number,))
        del self._numbers[run_id]

    # -- signals -----------------------------------------------------------------------------------

    def signals(self, run_id: str, after: int = 0) -> builtins.list[Signal]:
        query = f"SELECT {_SIGNAL_COLUMNS} FROM {{signals}} WHERE run = ? AND number > ? ORDER BY number"  # noqa: S608
        return [Signal(*values) for values in self._execute(query, (self.number(run_id), after)).fetchall()]

    def has_signal(self, run_id: str, signal_id: str) -> bool:
        query = "SELECT 1 FROM {signals} WHERE run = ? AND signal_id = ?"
        return bool(self._fetch(query, (self.number(run_id), signal_id)))

    def put_signals(self, run_id: str, signals: Sequence[Signal]) -> None:
        for signal in signals:
            place = self.number(run_id), signal.number
            self._execute(
                "UPDATE {signals} SET payload = ?, sent_by = ? WHERE run = ? AND number = ?",
                (signal.payload, signal.by, *place),
            )

    def add_signal(self, run_id: str, signal: Signal) -> None:
        query = f"INSERT INTO {{signals}} (run, {_SIGNAL_COLUMNS}) VALUES ({', '.join('?' * (1 + len(signal)))})"  # noqa: S608
        self._execute(query, (self.number(run_id), *signal))


_SIGNAL_COLUMNS = "number, name, payload, signal_id, wait_id, sent_at, sent_by"
