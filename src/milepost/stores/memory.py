"""A store in this process's memory, for tests and for runs that nobody needs to find again.

It stores bytes, never references to a user's objects. Its leases do not end by themselves: a run belongs to its owner
until the owner releases it or another takes it over.
"""

from __future__ import annotations

import bisect
import builtins
import functools
import itertools
import math
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Unpack

import msgspec

from milepost.model.record import Record
from milepost.store import Signal, StoreOptions
from milepost.stores.base.fence import Row
from milepost.stores.base.live import MemoryShelf
from milepost.stores.base.store import Runs
from milepost.stores.base.transaction import RecordEntry, RowFilters, StatusCount, Transaction, Walk, matches
from milepost.stores.base.workers import MemoryWorkerShelf


class _Run(msgspec.Struct):
    """A run's row, its records in order and by node, and its signals."""

    row: Row
    created: int
    records: list[Record] = []
    by_node: dict[str, list[Record]] = {}
    signals: list[Signal] = []
    signal_ids: set[str | None] = set()


class MemoryStore(Runs):
    """A store that lives as long as its process. `len()` counts its runs.

    >>> store = MemoryStore()
    >>> doubling.run(21, store=store, run_id="r-1")
    42
    >>> len(store)
    1
    """

    is_blocking = False

    def __init__(self, **options: Unpack[StoreOptions]) -> None:
        super().__init__(**options)
        self.place = "memory://"
        self._runs: dict[str, _Run] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._keep_live_in(MemoryShelf())
        self._worker_shelf = MemoryWorkerShelf()

    def __len__(self) -> int:
        return len(self._runs)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return "MemoryStore()"

    def close(self) -> None:
        self.flush_live()
        with self._lock:
            self._is_closed = True

    @contextmanager
    def _write(self, op: str) -> Iterator[Transaction]:
        with self._lock:
            self._check_open()
            tx = _Memory(self._runs, self._numbers)
            try:
                yield tx
            except BaseException:
                tx.undo()
                raise

    @contextmanager
    def _read(self, op: str) -> Iterator[Transaction]:
        with self._lock:
            self._check_open()
            yield _Memory(self._runs, self._numbers)

    def _lease_end(self, now: float, lease: float) -> float | None:
        return None

    def _before_fork(self) -> None:
        self._lock.acquire()

    def _after_fork(self, is_child: bool) -> None:
        if is_child:
            self._lock = threading.Lock()
            self._keep_live_in(MemoryShelf())
            self._worker_shelf = MemoryWorkerShelf()
        else:
            self._lock.release()


class _Memory(Transaction):
    """A transaction on the dict under its lock. It notes how to undo each change."""

    def __init__(self, runs: dict[str, _Run], numbers: Iterator[int]) -> None:
        self._runs = runs
        self._numbers = numbers
        self._undo: list[Callable[[], object]] = []

    def undo(self) -> None:
        """Undo all changes, the last first."""
        while self._undo:
            self._undo.pop()()

    # -- rows --------------------------------------------------------------------------------------

    def row(self, run_id: str) -> Row | None:
        run = self._runs.get(run_id)
        return None if run is None else run.row

    def add_row(self, row: Row) -> None:
        self._undo.append(lambda: self._runs.pop(row.run_id, None))
        self._runs[row.run_id] = _Run(row, next(self._numbers))

    def put_row(self, row: Row) -> None:
        run = self._runs[row.run_id]
        old = run.row
        self._undo.append(lambda: setattr(run, "row", old))
        run.row = row

    def page(self, *, limit: int, after: str | int | None = None, **filters: Unpack[RowFilters]) -> builtins.list[Row]:
        start = (self.position(after) or 0) if isinstance(after, str) else after
        runs = self._below(start, filters.get("above"))
        found = (run.row for run in runs if matches(run.row, filters))
        return list(itertools.islice(found, limit))

    def _below(self, below: int | None, above: int | None) -> Iterator[_Run]:
        """Yield the runs between two positions, the newest first."""
        for run in reversed(self._runs.values()):
            if above is not None and run.created <= above:
                return
            if below is None or run.created < below:
                yield run

    def walk(self, after: str | int | None, most: int, **filters: Unpack[RowFilters]) -> Walk:
        below = self.position(after) if isinstance(after, str) else after
        last = next(itertools.islice(self._below(below, None), most - 1, None), None)
        return Walk(below) if last is None else Walk(below, last.created - 1, last.row.run_id)

    def position(self, run_id: str) -> int | None:
        run = self._runs.get(run_id)
        return None if run is None else run.created

    def candidates(self, flow: str, now: float, limit: int, skip: Collection[str] = ()) -> builtins.list[Row]:
        return [run.row for run in self._runs.values() if run.row.flow == flow]

    def tally(self) -> builtins.list[StatusCount]:
        tallies: dict[str, StatusCount] = {}
        for run in self._runs.values():
            row = run.row
            size = sum(len(r.header or b"") + len(r.payload or b"") for r in run.records)
            _, runs, records, total, oldest = tallies.get(row.status, StatusCount(row.status, 0, 0, 0, row.updated_at))
            tallies[row.status] = StatusCount(
                row.status, runs + 1, records + len(run.records), total + size, min(oldest or math.inf, row.updated_at)
            )
        return [tallies[status] for status in sorted(tallies)]

    # -- records -----------------------------------------------------------------------------------

    def insert(self, run_id: str, records: Sequence[Record]) -> None:
        run = self._runs[run_id]
        for record in records:
            self._undo.append(lambda taken=run.records: taken.pop())  # type: ignore[misc]
            run.records.append(record)
            nodes = run.by_node.setdefault(record.node_id, [])
            self._undo.append(lambda taken=nodes: taken.pop())  # type: ignore[misc]
            nodes.append(record)

    def life(self, run_id: str) -> str | None:
        run = self._runs.get(run_id)
        return None if run is None else run.row.life

    def newest(self, run_id: str) -> int:
        run = self._runs.get(run_id)
        return run.records[-1].sequence if run is not None and run.records else 0

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
        run = self._runs.get(run_id)
        if run is None:
            return []
        records = run.records if node_id is None else run.by_node.get(node_id, [])
        start = bisect.bisect_right(records, after, key=_sequence)
        end = len(records) if before is None else bisect.bisect_left(records, before, key=_sequence)
        order = range(end - 1, start - 1, -1) if newest else range(start, end)
        found = (records[i] for i in order if kinds is None or records[i].kind in kinds)
        return list(itertools.islice(found, limit))

    def newest_checkpoint(
        self, run_id: str, *, after: int = -1, before: int | None = None, node_id: str | None = None
    ) -> RecordEntry | None:
        found = self.records(
            run_id, after=after, before=before, kinds=("checkpoint",), node_id=node_id, newest=True, limit=1
        )
        return RecordEntry(found[0]) if found else None

    def find_visit(self, run_id: str, node_id: str, visit: int) -> Record | None:
        run = self._runs.get(run_id)
        nodes = [] if run is None else run.by_node.get(node_id, [])
        return next((r for r in reversed(nodes) if r.kind == "checkpoint" and r.visit == visit), None)

    def last_visit(self, run_id: str, node_id: str) -> int:
        visit = 0
        for record in reversed(self._runs[run_id].by_node.get(node_id, [])):
            visit = max(visit, record.visit)
            if record.kind == "checkpoint":
                break
        return visit

    def entries(self, run_id: str) -> builtins.list[RecordEntry]:
        run = self._runs[run_id]
        return [RecordEntry(r) for r in run.records if r.kind == "checkpoint"]

    def node_ids(self, run_id: str) -> builtins.list[str]:
        return sorted(node_id for node_id, records in self._runs[run_id].by_node.items() if node_id and records)

    def put_payload(self, run_id: str, record: Record) -> None:
        run = self._runs[run_id]
        for records in (run.records, run.by_node[record.node_id]):
            at = bisect.bisect_left(records, record.sequence, key=_sequence)
            self._undo.append(functools.partial(records.__setitem__, at, records[at]))
            records[at] = record

    def remove_node(self, run_id: str, node_id: str) -> int:
        run = self._runs[run_id]
        old, old_nodes = run.records, run.by_node.get(node_id, [])

        def put_back() -> None:
            run.records = old
            run.by_node[node_id] = old_nodes

        self._undo.append(put_back)
        run.records = [r for r in old if r.node_id != node_id or r.kind == "owner"]
        run.by_node[node_id] = [r for r in old_nodes if r.kind == "owner"]
        return len(old) - len(run.records)

    def remove_records(self, run_id: str, sequences: Sequence[int]) -> int:
        run, unwanted = self._runs[run_id], frozenset(sequences)
        old, old_nodes = run.records, dict(run.by_node)

        def put_back() -> None:
            run.records = old
            run.by_node = old_nodes

        self._undo.append(put_back)
        run.records = [r for r in old if r.sequence not in unwanted]
        for node_id, records in old_nodes.items():
            run.by_node[node_id] = [r for r in records if r.sequence not in unwanted]
        return len(old) - len(run.records)

    def remove_run(self, run_id: str) -> None:
        # The dict has the order of creation: to undo this by adding the run again would change that order.
        old = dict(self._runs)

        def put_back() -> None:
            self._runs.clear()
            self._runs.update(old)

        self._undo.append(put_back)
        del self._runs[run_id]

    # -- signals -----------------------------------------------------------------------------------

    def signals(self, run_id: str, after: int = 0) -> builtins.list[Signal]:
        run = self._runs.get(run_id)
        return [] if run is None else [s for s in run.signals if s.number > after]

    def has_signal(self, run_id: str, signal_id: str) -> bool:
        return signal_id in self._runs[run_id].signal_ids

    def put_signals(self, run_id: str, signals: Sequence[Signal]) -> None:
        run, new = self._runs[run_id], {signal.number: signal for signal in signals}
        self._undo.append(functools.partial(setattr, run, "signals", run.signals))
        run.signals = [new.get(signal.number, signal) for signal in run.signals]

    def add_signal(self, run_id: str, signal: Signal) -> None:
        run = self._runs[run_id]
        self._undo += [run.signals.pop, lambda: run.signal_ids.discard(signal.signal_id)]
        run.signals.append(signal)
        run.signal_ids.add(signal.signal_id)


def _sequence(record: Record) -> int:
    return record.sequence
