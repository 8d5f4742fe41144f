"""The primitives of a transaction over runs' folders.

All reads of a run show it as of the commit that was its newest when it was first read. Changes are collected until the
end, and become one commit of each run.
"""

from __future__ import annotations

import builtins
import itertools
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Unpack

from msgspec.structs import replace

from milepost.errors import RunNotFoundError, StoreError
from milepost.model.record import CHECKPOINT, OWNER, Record
from milepost.store import Signal
from milepost.stores.base.fence import Row
from milepost.stores.base.transaction import (
    DamagedRow,
    RecordEntry,
    RowFilters,
    StatusCount,
    Transaction,
    Walk,
    WriteConflict,
    begins_as_meant,
    matches,
)
from milepost.stores.file.catalogue import Listed
from milepost.stores.file.commit import ONE_FILE, Lines
from milepost.stores.file.fs import exists, lock, open_regular
from milepost.stores.file.history import CHECKPOINTS, History, RecordLocation
from milepost.stores.file.log import JOURNAL, Log, Sought, Tail
from milepost.stores.file.write import Change, Removal, StoreParts, bury, joined, raze, write


class FileTransaction(Transaction):
    """One read, or one write if `lock` is given: it is called with each run before the run is read."""

    def __init__(self, parts: StoreParts, lock: Callable[[str], None] | None = None) -> None:
        self._parts = parts
        self._lock = lock
        self._changes: dict[str, Change] = {}
        self._unreadable: builtins.list[str] = []
        """The runs to delete that can't be read."""
        self._histories: dict[str, History] = {}
        self._positions: dict[str, int] = {}
        """The position of each run in the order of creation."""
        self._held: dict[str, int] = {}
        """The open files, by run, whose locks this transaction holds."""

    def close(self) -> None:
        """Release all locks."""
        for descriptor in self._held.values():
            os.close(descriptor)

    def commit(self) -> set[str]:
        """Write all changes. Return the runs that others have changed since they were read;
        nothing is written for those."""
        changes = [change for change in self._changes.values() if change.is_one]
        overtaken = write(self._parts, changes) if changes else set[str]()
        for run_id in self._unreadable:
            raze(self._parts, run_id)
        return overtaken

    # -- runs --------------------------------------------------------------------------------------

    def _run(self, run_id: str) -> Change:
        change = self._changes.get(run_id)
        if change is None:
            if self._lock is not None:
                self._lock(run_id)
            with self._of_one_run(run_id):
                log, tail = self._find(run_id)
            change = self._changes[run_id] = Change(run_id, log, tail)
        return change

    def _find(self, run_id: str) -> tuple[Log | None, Tail | None]:
        logs, gone = self._parts.logs, None
        while True:
            log = logs.find(run_id)
            if log is None:
                return None, None
            if gone is not None and log.folder == gone.folder:
                # The run is deleted but for its last traces. No run of this id can be created before they are removed.
                logs.forget(log)
                if self._lock is not None:
                    bury(self._parts, log)
                return None, None
            tail = log.tail()
            if tail is not None:
                return log, tail
            logs.forget(log)
            gone = log

    def _history(self, run_id: str) -> History | None:
        """Return the run's records as of its tail; None if there is no such run."""
        history = self._histories.get(run_id)
        if history is None:
            change = self._run(run_id)
            if change.log is None or change.tail is None:
                return None
            history = self._histories[run_id] = History(change.log, change.tail)
        return history

    def reread(self, run_id: str) -> bool:
        if self._lock is not None:
            return False
        self._changes.pop(run_id, None)
        self._histories.pop(run_id, None)
        return True

    @contextmanager
    def _standing(self, run_id: str) -> Iterator[None]:
        """Raise `RunNotFoundError`, in a write `WriteConflict`, if a run's folder is removed while it is read."""
        try:
            yield
        except FileNotFoundError as exc:
            if self._lock is not None:
                raise WriteConflict from exc
            raise RunNotFoundError(run_id, self._parts.root) from exc

    @contextmanager
    def _of_one_run(self, run_id: str) -> Iterator[None]:
        """Report faults of one run's files as damage of that run, so that it does not keep others from being read."""
        try:
            yield
        except OSError as exc:
            if isinstance(exc, StoreError) or exc.errno not in ONE_FILE:
                raise
            raise self._damaged(run_id, str(exc)) from exc

    # -- rows --------------------------------------------------------------------------------------

    def row(self, run_id: str) -> Row | None:
        change = self._run(run_id)
        if change.row is not None or change.log is None or change.tail is None:
            return None if change.is_deletion else change.row
        if change.head is None:
            raise self._damaged(run_id, change.tail.damage)
        row = change.log.row(change.head)
        if row.owner and row.lease_until is not None:
            leases = self._parts.leases
            with self._of_one_run(run_id):
                renewed = leases.renewed_at(leases.path(change.log.folder, row.epoch))
            if renewed is not None:
                row = replace(row, lease_until=renewed + row.lease, updated_at=max(row.updated_at, renewed))
        return row

    def _damaged(self, run_id: str, damage: str) -> DamagedRow:
        return DamagedRow(
            f"the row of run {run_id!r} is damaged: {damage}: restore that file from a copy, move it away to go on from the "
            f"commit before it, or delete the run with force=True",
            store=self._parts.root,
            op="read",
        )

    def add_row(self, row: Row) -> None:
        self._run(row.run_id).row = row

    def put_row(self, row: Row) -> None:
        self._run(row.run_id).row = row

    def page(self, *, limit: int, after: str | int | None = None, **filters: Unpack[RowFilters]) -> builtins.list[Row]:
        listed = self._parts.catalogue.runs()
        if isinstance(after, str):
            after = next((run.position for run in listed if run.run_id == after), 0)
        above = filters.get("above")
        rows: builtins.list[Row] = []
        for run in listed:
            if (after is not None and run.position >= after) or (above is not None and run.position <= above):
                continue
            if not run.damage and not begins_as_meant(run.run_id, run.created_at, filters):
                continue
            row = self._row_to_show(run)
            self._positions[run.run_id] = run.position
            if row is not None and matches(row, filters):
                rows.append(row)
                if len(rows) >= limit:
                    break
        return rows

    def walk(self, after: str | int | None, most: int, **filters: Unpack[RowFilters]) -> Walk:
        # Each row is in a file of its own; ids and times of creation are known without it.
        below = self.position(after) if isinstance(after, str) else after
        looked_at = (
            run
            for run in self._parts.catalogue.runs()
            if (below is None or run.position < below)
            and (run.damage or begins_as_meant(run.run_id, run.created_at, filters))
        )
        last = next(itertools.islice(looked_at, most - 1, None), None)
        return Walk(below) if last is None else Walk(below, last.position - 1, last.run_id)

    def _row_to_show(self, run: Listed) -> Row | None:
        """Return the row, or what is left of a damaged one."""
        reason = run.damage
        if not reason:
            try:
                return self.row(run.run_id)
            except DamagedRow as exc:
                reason = str(exc)
        known = None
        with suppress(DamagedRow, FileNotFoundError):
            history = self._history(run.run_id)
            known = None if history is None else history.row
        if known is None:
            return Row(run.run_id, "", "blocked", created_at=run.created_at, updated_at=0.0, epoch=0, reason=reason)
        return Row(
            run.run_id,
            known.flow,
            "blocked",
            created_at=known.created_at,
            updated_at=known.updated_at,
            epoch=known.epoch,
            reason=reason,
            tags=known.tags,
        )

    def position(self, run_id: str) -> int | None:
        if run_id not in self._positions:
            self._positions |= {run.run_id: run.position for run in self._parts.catalogue.runs()}
        return self._positions.get(run_id)

    def candidates(self, flow: str, now: float, limit: int, skip: Collection[str] = ()) -> builtins.list[Row]:
        due, found = self._parts.due, dict[str, tuple[str, Row]]()
        for marker in due.markers(flow):
            with suppress(DamagedRow):  # the others go on; a reader of this one gets the error
                run_id = due.run_id(marker)
                row = None if run_id is None else self.row(run_id)
                if row is None:
                    continue
                head = self._run(row.run_id).head
                if head is not None and head.due != marker.number <= head.commit:
                    due.remove(marker)
                elif row.flow == flow:
                    found[row.run_id] = (marker.folder, row)
        return [row for _, row in sorted(found.values(), key=lambda item: item[0])]

    def tally(self) -> builtins.list[StatusCount]:
        tallies: dict[str, StatusCount] = {}
        for listed in self._parts.catalogue.runs():
            row = self._row_to_show(listed)
            if row is None:
                continue
            counted = self._changes.get(listed.run_id)
            head = None if counted is None else counted.head
            count, length = (0, 0) if head is None else (head.count, head.size)
            _, runs, records, size, oldest = tallies.get(row.status, StatusCount(row.status, 0, 0, 0, None))
            if row.updated_at:  # some damaged runs have none
                oldest = row.updated_at if oldest is None else min(oldest, row.updated_at)
            tallies[row.status] = StatusCount(row.status, runs + 1, records + count, size + length, oldest)
        return [tallies[status] for status in sorted(tallies)]

    # -- records -----------------------------------------------------------------------------------

    def _search(
        self, run_id: str, sought: Sought, *, after: int = -1, before: int | None = None, newest: bool = False
    ) -> Iterator[RecordLocation]:
        """Yield the records that the run had, without those that this transaction removes."""
        history, removal = self._history(run_id), self._run(run_id).removal
        if history is not None:
            for found in history.search(sought, after=after, before=before, newest=newest):
                if removal is None or found.placed.sequence not in removal.sequences:
                    yield found

    def _added(
        self, run_id: str, sought: Sought, *, after: int = -1, before: int | None = None
    ) -> builtins.list[Record]:
        """Return the matching records that this transaction adds."""
        node_id, kinds, visit = sought
        return [
            record
            for record in self._run(run_id).records
            if after < record.sequence
            and (before is None or record.sequence < before)
            and (node_id is None or record.node_id == node_id)
            and (kinds is None or record.kind in kinds)
            and (visit is None or record.visit == visit)
        ]

    def insert(self, run_id: str, records: Sequence[Record]) -> None:
        self._run(run_id).records += records

    def put_payload(self, run_id: str, record: Record) -> None:
        change, sequence = self._run(run_id), record.sequence
        change.records[:] = [record if added.sequence == sequence else added for added in change.records]
        with self._standing(run_id):
            for found in self._search(run_id, Sought(), after=sequence - 1, before=sequence + 1):
                _, former = change.rewritten.get(sequence, (0, None))
                change.growth += Lines([record]).size - (Lines([former]).size if former else found.placed.length)
                change.rewritten[sequence] = (found.number, record)

    def hold(self, run_id: str) -> None:
        change = self._run(run_id)
        if change.log is None or change.tail is None or run_id in self._held:
            return
        with self._standing(run_id):
            self._held[run_id] = open_regular(f"{change.log.place}/{JOURNAL}", flags=os.O_RDWR)
        # The last holder of the lock may have rewritten records, and may have ended without a commit.
        self._histories.pop(run_id, None)
        if not lock(self._held[run_id]) or exists(change.log.path(change.tail.number + 1)):
            raise WriteConflict

    def life(self, run_id: str) -> str | None:
        with suppress(DamagedRow):
            row = self.row(run_id)
            return None if row is None else row.life
        return None

    def newest(self, run_id: str) -> int:
        try:
            change = self._run(run_id)
            if change.records:
                return change.records[-1].sequence
            if change.head is not None:
                return change.head.last
            history = self._history(run_id)
            return 0 if history is None else history.last
        except (DamagedRow, FileNotFoundError):  # only a listing gets here: a reader of this run has got the error
            return 0

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
        sought = Sought(node_id, None if kinds is None else tuple(kinds))
        with self._standing(run_id):
            added = self._added(run_id, sought, after=after, before=before)
            kept = self._kept(run_id, sought, after=after, before=before, newest=newest)
            return [
                *itertools.islice(itertools.chain(added[::-1], kept) if newest else itertools.chain(kept, added), limit)
            ]

    def _kept(self, run_id: str, sought: Sought, **bounds: Any) -> Iterator[Record]:
        history, rewritten = self._history(run_id), self._run(run_id).rewritten
        for found in self._search(run_id, sought, **bounds):
            record = None if history is None else history.record(found)
            if record is not None:
                yield rewritten[record.sequence][1] if record.sequence in rewritten else record

    def newest_checkpoint(
        self, run_id: str, *, after: int = -1, before: int | None = None, node_id: str | None = None
    ) -> RecordEntry | None:
        sought = CHECKPOINTS._replace(node_id=node_id)
        try:
            for record in reversed(self._added(run_id, sought, after=after, before=before)):
                return RecordEntry(record._replace(payload=None))
            for found in self._search(run_id, sought, after=after, before=before, newest=True):
                return found.entry()
        except FileNotFoundError as exc:
            if self._lock is not None:
                raise WriteConflict from exc
        except DamagedRow:
            pass  # as in `newest`
        return None

    def find_visit(self, run_id: str, node_id: str, visit: int) -> Record | None:
        sought = Sought(node_id, CHECKPOINTS.kinds, visit)
        with self._standing(run_id):
            return next(self._kept(run_id, sought, newest=True), None)

    def last_visit(self, run_id: str, node_id: str) -> int:
        visit = 0
        sought = Sought(node_id)
        with self._standing(run_id):
            added = self._added(run_id, sought)
            kept = ((found.placed.kind, found.placed.visit) for found in self._search(run_id, sought, newest=True))
            for kind, number in itertools.chain([(record.kind, record.visit) for record in reversed(added)], kept):
                visit = max(visit, number)
                if kind == CHECKPOINT:
                    break
        return visit

    def strays(self, run_id: str) -> builtins.list[str]:
        log = self._run(run_id).log
        if log is None:
            return []
        with self._standing(run_id):
            numbers = sorted(int(name) for name in os.listdir(log.folder) if len(name) == 12 and name.isdecimal())
        end = log.newest()  # read after the listing: others may have written meanwhile
        return [
            f"{log.path(number)} stands beyond the end of the journal, commit {end}"
            for number in numbers
            if number > end
        ]

    def entries(self, run_id: str) -> builtins.list[RecordEntry]:
        with self._standing(run_id):
            return [found.entry() for found in self._search(run_id, CHECKPOINTS)] + [
                RecordEntry(record._replace(payload=None)) for record in self._added(run_id, CHECKPOINTS)
            ]

    def node_ids(self, run_id: str) -> builtins.list[str]:
        with self._standing(run_id):
            history = self._history(run_id)
            nodes = set() if history is None else history.nodes()
            return sorted(nodes | {record.node_id for record in self._added(run_id, Sought()) if record.node_id})

    def remove_node(self, run_id: str, node_id: str) -> int:
        with self._standing(run_id):
            found = [found for found in self._search(run_id, Sought(node_id)) if found.placed.kind != OWNER]
            return self._remove(run_id, found)

    def remove_records(self, run_id: str, sequences: Sequence[int]) -> int:
        if not sequences:
            return 0
        unwanted = frozenset(sequences)
        with self._standing(run_id):
            among = self._search(run_id, Sought(), after=sequences[0] - 1, before=sequences[-1] + 1)
            return self._remove(run_id, [found for found in among if found.placed.sequence in unwanted])

    def _remove(self, run_id: str, unwanted: Collection[RecordLocation]) -> int:
        """Remove records of a run. No others were removed in this transaction before."""
        history, sequences = self._history(run_id), frozenset(found.placed.sequence for found in unwanted)
        if history is not None and sequences:
            left = (
                found.number
                for found in history.search(CHECKPOINTS, newest=True)
                if found.placed.sequence not in sequences
            )
            self._run(run_id).removal = Removal(
                sequences,
                tuple(sorted({found.number for found in unwanted if found.commit is not None})),
                sum(found.placed.length for found in unwanted),
                joined(history.gaps(), sequences),
                next(left, None),
            )
        return len(sequences)

    def remove_run(self, run_id: str) -> None:
        try:
            change = self._run(run_id)
        except DamagedRow:
            change = None
        if change is None or change.head is None:
            self._unreadable.append(run_id)
        else:
            change.is_deletion = True

    # -- signals -----------------------------------------------------------------------------------

    def signals(self, run_id: str, after: int = 0) -> builtins.list[Signal]:
        with self._standing(run_id):
            history = self._history(run_id)
            kept = [] if history is None else history.signals(after)
            return kept + [signal for signal in self._run(run_id).signals if signal.number > after]

    def has_signal(self, run_id: str, signal_id: str) -> bool:
        with self._standing(run_id):
            history = self._history(run_id)
            is_kept = history is not None and signal_id in history.signal_ids()
        return is_kept or any(signal.signal_id == signal_id for signal in self._run(run_id).signals)

    def put_signals(self, run_id: str, signals: Sequence[Signal]) -> None:
        with self._standing(run_id):
            history, new = self._history(run_id), {signal.number: signal for signal in signals}
            places = {} if history is None else history.places_of_signals()
        rewritten = self._run(run_id).rewritten_signals
        rewritten |= {number: (place, new[number]) for number, place in places.items() if number in new}

    def add_signal(self, run_id: str, signal: Signal) -> None:
        self._run(run_id).signals.append(signal)
