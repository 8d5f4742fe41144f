"""The primitives that a backend must offer inside one atomic read or write, and nothing more.

`OwnerStore` and the classes that build on it hold all logic, written over these primitives. A new store implements
them, and gets every verb of the contract.
"""

from __future__ import annotations

import abc
import builtins
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from milepost.errors import CheckpointCorruptError, StatementError, StoreError, StoreVersionError
from milepost.model.ranges import Ranges
from milepost.model.record import END, Record, digest_of, parse_time
from milepost.store import Signal, Statement
from milepost.stores.base.fence import Row

if TYPE_CHECKING:
    from milepost.model.info import CheckpointInfo

__all__ = [
    "DamagedRow",
    "NewerRow",
    "Note",
    "RecordEntry",
    "StatusCount",
    "Transaction",
    "WriteConflict",
    "failed_statement",
    "note_of",
    "seal_of",
]


class WriteConflict(Exception):
    """The exception of a backend that undid a write because something that was read in it has
    changed. The write is tried again."""


class DamagedRow(StoreError):
    """A run that exists and can't be read. The backend is well, and its other runs can be read."""

    is_of_one_run = True


class NewerRow(DamagedRow, StoreVersionError):
    """A run that a newer release wrote. This release treats it as damaged."""


class Note(NamedTuple):
    """The facts that a store knows about a record from outside, whose bytes may be anything."""

    timestamp: float
    next_node: str | None
    seal: str = ""
    """The digest of place and bytes; see `seal_of`."""


class RecordEntry(NamedTuple):
    """A record without its payload. `note` is set for a record from outside, which has no header."""

    record: Record
    note: Note | None

    def info(self, run_id: str, superseded: bool) -> CheckpointInfo:
        """Build the info that people see. Facts that a damaged header hides keep their defaults."""
        record = self.record
        fields = self._known()
        try:
            moment = parse_time(fields["timestamp"])
        except (KeyError, TypeError, ValueError):
            moment = datetime.fromtimestamp(self.note.timestamp if self.note else 0.0, UTC)
        attempt = fields.get("attempt", 1)
        from milepost.model.info import CheckpointInfo

        return CheckpointInfo(
            run_id,
            record.node_id,
            record.sequence,
            moment,
            record.size,
            record.visit,
            attempt if isinstance(attempt, int) else 1,
            superseded,
        )

    def next_node(self) -> str | None:
        """Return the node that comes next, None if that is not recorded or can't be read.

        It is a whole id, and END only at the end of the run's own graph.
        """
        if self.note is not None:
            return self.note.next_node
        target = self._known().get("next_node")
        if not isinstance(target, str):
            return None
        around = self.record.node_id.rpartition("/")[0]
        if not around:
            return target
        return around if target == END else f"{around}/{target}"

    def _known(self) -> Mapping[str, Any]:
        try:
            return self.record.header_fields()
        except CheckpointCorruptError:
            return {}


_MOST = 1 << 40
"""A limit that no number of runs reaches."""


class StatusCount(NamedTuple):
    """The totals of the runs with one status."""

    status: str
    runs: int
    records: int
    size: int
    """Size of the stored records in bytes."""
    oldest: float | None
    """The time at which the least recently changed run last changed, in POSIX seconds; None if no row says it."""


class _Target(msgspec.Struct):
    next_node: str | None = None


_decode_target = msgspec.json.Decoder(_Target).decode


def failed_statement(sql: str, cause: Exception) -> StatementError:
    """Return the error of an append whose statement failed. Add a note to `cause` that shows
    users which statement it was."""
    cause.add_note(f"it came from the statement {sql!r} that was to count with a checkpoint")
    return StatementError(f"the statement {sql!r} failed: {cause}", sql=sql)


def note_of(run_id: str, record: Record, timestamp: float) -> Note:
    """Build the note of a record from outside. `next_node` is set if its bytes are a JSON object that has one."""
    try:
        target = _decode_target(record.payload or b"").next_node
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        target = None
    return Note(timestamp, target, seal_of(run_id, record))


def seal_of(run_id: str, record: Record) -> str:
    """Return the digest that proves that a record from outside still has its bytes and its place."""
    place = msgspec.json.encode((run_id, record.node_id, record.sequence, record.visit))
    return digest_of(place + (record.payload or b""))


class Transaction(abc.ABC):
    """One atomic read or write of a backend. All its reads show one moment. It ends with its block."""

    # -- rows --------------------------------------------------------------------------------------

    @abc.abstractmethod
    def row(self, run_id: str) -> Row | None:
        """Return the run's row, or None. Raise `DamagedRow` if it can't be read."""

    @abc.abstractmethod
    def add_row(self, row: Row) -> None:
        """Add the row of a run that has none."""

    @abc.abstractmethod
    def put_row(self, row: Row) -> None:
        """Replace the row of a run that has one."""

    def take(self, row: Row, record: Record) -> None:
        """Replace a row by one with a new owner, and add the owner record, whose number is the next one."""
        self.put_row(row)
        self.insert(row.run_id, (record,))

    @abc.abstractmethod
    def page(
        self,
        *,
        flow: str | None,
        statuses: Collection[str] | None,
        tags: Mapping[str, str],
        updated_before: float | None,
        updated_after: float | None,
        limit: int,
        after: str | int | None,
    ) -> builtins.list[Row]:
        """List rows by creation, newest first, below `after`, which is a run or a position. All filters must match.

        A damaged row hides no other: it is given with what is left of it, and its reason says so.
        """

    @abc.abstractmethod
    def position(self, run_id: str) -> int | None:
        """Return the position of a run in the order of creation, or None if there is no such run.

        The position stays free when the run is deleted.
        """

    def rested(
        self, status: str, *, after: tuple[float, str], until: float, limit: int
    ) -> builtins.list[tuple[float, str]]:
        """List the times at which runs of one status last changed and their ids, in that order,
        after `after` and up to `until`.

        It gives about `limit` of them. A backend that has all rows at hand gives all.
        """
        rows = self.page(
            flow=None,
            statuses={status},
            tags={},
            updated_before=None,
            updated_after=None,
            limit=_MOST,
            after=None,
        )
        return sorted(
            (row.updated_at, row.run_id)
            for row in rows
            if row.updated_at <= until and (row.updated_at, row.run_id) > after
        )

    @abc.abstractmethod
    def candidates(self, flow: str, now: float, limit: int, skip: Collection[str] = ()) -> builtins.list[Row]:
        """List rows of `flow` that may be due, oldest first.

        It gives at least the oldest `limit` of each kind of due run; of those whose time has come, those whose time
        came first. Runs in `skip` may be left out, and do not count.
        """

    @abc.abstractmethod
    def tally(self) -> builtins.list[StatusCount]:
        """Count what the store has, by the status in the rows. The cost may grow with the store."""

    # -- records -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def insert(self, run_id: str, records: Sequence[Record], note: Note | None = None) -> None:
        """Add records. Their headers are sealed, and their numbers were never used."""

    def put_payload(self, run_id: str, record: Record) -> None:
        """Replace header, payload and packing of a stored record by others that say the same. Only backends with
        `keeps_differences` have this.
        """
        raise NotImplementedError

    def hold(self, run_id: str) -> None:  # noqa: B027 - most backends need do nothing
        """Keep others from removing or rewriting records of a run until this transaction ends.

        This is for backends where others could do so after this transaction has read, and
        would be noticed only at its end.
        """

    def reread(self, run_id: str) -> bool:
        """Show the run as it is now from here on. Return False if all reads of a transaction show one moment anyway."""
        return False

    @abc.abstractmethod
    def newest(self, run_id: str) -> int:
        """Return the sequence of the newest record, 0 if there is none."""

    @abc.abstractmethod
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
        """List records between `after` and `before`, both excluded, in order or from the
        newest back. An index serves this."""

    @abc.abstractmethod
    def newest_checkpoint(
        self, run_id: str, *, after: int = -1, before: int | None = None, node_id: str | None = None
    ) -> RecordEntry | None:
        """Return the newest checkpoint between `after` and `before`, without its payload."""

    @abc.abstractmethod
    def find_visit(self, run_id: str, node_id: str, visit: int) -> Record | None:
        """Return the newest checkpoint of that visit."""

    @abc.abstractmethod
    def last_visit(self, run_id: str, node_id: str) -> int:
        """Return the highest visit that the node's newest records name, 0 if there is none."""

    def strays(self, run_id: str) -> builtins.list[str]:
        """Return one sentence for each thing in the run's place that should be in its journal and is not."""
        return []

    @abc.abstractmethod
    def entries(self, run_id: str) -> builtins.list[RecordEntry]:
        """List all checkpoints in order, without their payloads."""

    @abc.abstractmethod
    def node_ids(self, run_id: str) -> builtins.list[str]:
        """List all nodes that have a record, sorted. The cost grows with the number of nodes, not with their visits."""

    @abc.abstractmethod
    def remove_node(self, run_id: str, node_id: str) -> int:
        """Delete all records of a node except its owner records. Return how many there were."""

    @abc.abstractmethod
    def remove_records(self, run_id: str, sequences: Sequence[int]) -> int:
        """Delete the records with these numbers, which ascend. Return how many there were."""

    @abc.abstractmethod
    def remove_run(self, run_id: str) -> None:
        """Delete row, records and signals of a run."""

    # -- signals -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def signals(self, run_id: str, after: int = 0) -> builtins.list[Signal]:
        """List the signals with a number above `after`, in order."""

    @abc.abstractmethod
    def has_signal(self, run_id: str, signal_id: str) -> bool:
        """Return whether the run has a signal with that id."""

    @abc.abstractmethod
    def add_signal(self, run_id: str, signal: Signal) -> None:
        """Add a signal."""

    # -- statements of users -----------------------------------------------------------------------

    def perform(self, statements: Sequence[Statement]) -> None:
        """Execute statements in this transaction, in order.

        Raise `StatementError` if one fails or may not stand in a transaction. Only backends with
        `runs_statements` have this.
        """
        raise NotImplementedError

    # -- built from the primitives above ---------------------------------------------------------------

    def live_checkpoint(
        self, run_id: str, live: Ranges, *, before: int | None = None, node_id: str | None = None
    ) -> Record | None:
        """Return the newest checkpoint that is not superseded."""
        for after, end in _spans(live, before):
            found = self.records(
                run_id, after=after, before=end, kinds=("checkpoint",), node_id=node_id, newest=True, limit=1
            )
            if found:
                return found[0]
        return None

    def live_nodes(self, run_id: str, live: Ranges, before: int) -> tuple[str, ...]:
        """List the nodes that have a live checkpoint below `before`, sorted."""
        if before <= 1:  # there is nothing but the start
            return ()
        spans = _spans(live, before)
        return tuple(
            node_id
            for node_id in self.node_ids(run_id)
            if any(self.newest_checkpoint(run_id, after=after, before=end, node_id=node_id) for after, end in spans)
        )

    def live_entry(self, run_id: str, live: Ranges) -> RecordEntry | None:
        """Return the checkpoint of `live_checkpoint` as an entry, without its payload."""
        for after, end in _spans(live, None):
            found = self.newest_checkpoint(run_id, after=after, before=end)
            if found is not None:
                return found
        return None


def _spans(live: Ranges, before: int | None) -> builtins.list[tuple[int, int | None]]:
    """List the live ranges below `before`, newest first, bounds excluded. Ranges of branches
    may overlap, and are joined."""
    if not live:
        return [(-1, before)]
    joined: builtins.list[tuple[int, int | None]] = []
    for first, last in sorted(((first, last) for _, first, last in live), key=lambda span: span[0]):
        after, end = first - 1, None if last is None else last + 1
        if before is not None:
            end = before if end is None else min(end, before)
        if end is not None and end <= first:
            continue
        if joined and (joined[-1][1] is None or after < joined[-1][1]):
            start, other = joined.pop()
            joined.append((start, None if other is None or end is None else max(other, end)))
        else:
            joined.append((after, end))
    return joined[::-1]
