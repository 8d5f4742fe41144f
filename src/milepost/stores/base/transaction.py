"""What a medium must be able to do inside one atomic read or write, and nothing more.

`Journal` and `Runs` hold all logic and are written over these primitives. A new store implements them, and gets
every verb of the contract.
"""

from __future__ import annotations

import abc
import builtins
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from milepost.errors import CheckpointCorruptError, StatementError, StoreError, StoreVersionError
from milepost.model.record import END, Record, digest_of, parse_time
from milepost.store import Ranges, Signal, Statement
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
    """Raised by a medium whose write was undone: something that was read in it has changed. It is begun anew."""


class DamagedRow(StoreError):
    """A run that is there and can't be read. The medium is well: its other runs can be."""

    is_of_one_run = True


class NewerRow(DamagedRow, StoreVersionError):
    """A run that a newer release wrote. To this one it is as good as damaged."""


class Note(NamedTuple):
    """What a store knows by itself of a record from outside, whose bytes may be anything."""

    timestamp: float
    next_node: str | None
    seal: str = ""
    """Over place and bytes; see `seal_of`."""


class RecordEntry(NamedTuple):
    """A record without its payload. `note` is there for a record from outside, which has no header."""

    record: Record
    note: Note | None

    def info(self, run_id: str, superseded: bool) -> CheckpointInfo:
        """The entry as people see it. What a damaged header hides is left at its default."""
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
        """Where this leads, if that is recorded and readable: a whole id, and END at the end of the run's own graph only."""
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
"""More runs than any store has."""


class StatusCount(NamedTuple):
    """How much there is of the runs with one status."""

    status: str
    runs: int
    records: int
    size: int
    """Bytes of the records as they are kept."""
    oldest: float | None
    """When the run that was changed least recently was changed, in POSIX seconds; None where no row tells."""


class _Target(msgspec.Struct):
    next_node: str | None = None


_decode_target = msgspec.json.Decoder(_Target).decode


def failed_statement(sql: str, cause: Exception) -> StatementError:
    """What a statement that failed means for its append; `cause` tells users which of them it was."""
    cause.add_note(f"it came from the statement {sql!r} that was to count with a checkpoint")
    return StatementError(f"the statement {sql!r} failed: {cause}", sql=sql)


def note_of(run_id: str, record: Record, timestamp: float) -> Note:
    """The note for a record from outside; `next_node` if its bytes are a JSON object that has one."""
    try:
        target = _decode_target(record.payload or b"").next_node
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        target = None
    return Note(timestamp, target, seal_of(run_id, record))


def seal_of(run_id: str, record: Record) -> str:
    """What proves that a record from outside has its bytes and its place still."""
    place = msgspec.json.encode((run_id, record.node_id, record.sequence, record.visit))
    return digest_of(place + (record.payload or b""))


class Transaction(abc.ABC):
    """One atomic read or write of a medium. All that is read in it is as of one moment; it ends with its block."""

    # -- rows --------------------------------------------------------------------------------------

    @abc.abstractmethod
    def row(self, run_id: str) -> Row | None:
        """The run's row, or None. Raises `DamagedRow` if it can't be read."""

    @abc.abstractmethod
    def add_row(self, row: Row) -> None:
        """Keep the row of a run that has none."""

    @abc.abstractmethod
    def put_row(self, row: Row) -> None:
        """Replace the row of a run that has one."""

    def take(self, row: Row, record: Record) -> None:
        """Replace a row by what it is with a new owner, and add the record that tells of it, whose number is the next one."""
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
        """Rows by creation, newest first, from below `after` on, a run or a position; all filters must match.

        A damaged row hides no other: it comes with what is left of it, and its reason says so.
        """

    @abc.abstractmethod
    def position(self, run_id: str) -> int | None:
        """The place of a run in the order of creation, which stays free when the run goes; None if it is not there."""

    def rested(
        self, status: str, *, after: tuple[float, str], until: float, limit: int
    ) -> builtins.list[tuple[float, str]]:
        """When runs of one status were last changed and their ids, in that order, beyond `after` and up to `until`.

        About `limit` of them; a medium that has all rows at hand gives all.
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
        """Rows of `flow` that may be due, oldest first: at least the oldest `limit` of each kind that is due, of those whose
        time has come the ones whose time came first. Runs in `skip` may be left out, and do not count."""

    @abc.abstractmethod
    def tally(self) -> builtins.list[StatusCount]:
        """What the store has, by status as it is in the rows; the cost may grow with the store."""

    # -- records -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def insert(self, run_id: str, records: Sequence[Record], note: Note | None = None) -> None:
        """Add records, whose headers are sealed and whose numbers were never used."""

    def put_payload(self, run_id: str, record: Record) -> None:
        """Keep a record that is there with another header, payload and packing, which say the same.

        Only for media that say `keeps_differences`.
        """
        raise NotImplementedError

    def hold(self, run_id: str) -> None:  # noqa: B027 - most media need do nothing
        """Let nobody else remove records of a run, or keep any in another form, from now on until the end.

        For media where others could do so after this has read, and this would be begun anew only when it is written.
        """

    def reread(self, run_id: str) -> bool:
        """See the run as it is now from here on; False where all that a transaction reads is of one moment anyway."""
        return False

    @abc.abstractmethod
    def newest(self, run_id: str) -> int:
        """The sequence of the newest record, 0 if there is none."""

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
        """Records between `after` and `before`, both excluded; in order or from the newest back; by index."""

    @abc.abstractmethod
    def newest_checkpoint(
        self, run_id: str, *, after: int = -1, before: int | None = None, node_id: str | None = None
    ) -> RecordEntry | None:
        """The newest checkpoint between `after` and `before`, without its payload."""

    @abc.abstractmethod
    def find_visit(self, run_id: str, node_id: str, visit: int) -> Record | None:
        """The newest checkpoint of that visit."""

    @abc.abstractmethod
    def last_visit(self, run_id: str, node_id: str) -> int:
        """The highest visit that the node's newest records tell of, 0 for none."""

    def strays(self, run_id: str) -> builtins.list[str]:
        """One sentence for each thing in the run's place that ought to be in its journal and is not."""
        return []

    @abc.abstractmethod
    def entries(self, run_id: str) -> builtins.list[RecordEntry]:
        """All checkpoints without their payloads, in order."""

    @abc.abstractmethod
    def node_ids(self, run_id: str) -> builtins.list[str]:
        """All nodes that a record is of, sorted; at a cost that grows with their number, not with their visits."""

    @abc.abstractmethod
    def remove_node(self, run_id: str, node_id: str) -> int:
        """Delete all records of a node but its owner records; how many."""

    @abc.abstractmethod
    def remove_records(self, run_id: str, sequences: Sequence[int]) -> int:
        """Delete the records with these numbers, which are ascending; how many there were."""

    @abc.abstractmethod
    def remove_run(self, run_id: str) -> None:
        """Delete row, records and signals of a run."""

    # -- signals -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def signals(self, run_id: str, after: int = 0) -> builtins.list[Signal]:
        """Signals numbered above `after`, in order."""

    @abc.abstractmethod
    def has_signal(self, run_id: str, signal_id: str) -> bool:
        """Whether a signal with that id was kept."""

    @abc.abstractmethod
    def add_signal(self, run_id: str, signal: Signal) -> None:
        """Keep a signal."""

    # -- statements of users -----------------------------------------------------------------------

    def perform(self, statements: Sequence[Statement]) -> None:
        """Execute statements in this transaction, in order. `StatementError` for one that fails or may not stand in one.

        Only for media that say `runs_statements`.
        """
        raise NotImplementedError

    # -- made of the above -------------------------------------------------------------------------

    def live_checkpoint(
        self, run_id: str, live: Ranges, *, before: int | None = None, node_id: str | None = None
    ) -> Record | None:
        """The newest checkpoint that is not superseded."""
        for after, end in _spans(live, before):
            found = self.records(
                run_id, after=after, before=end, kinds=("checkpoint",), node_id=node_id, newest=True, limit=1
            )
            if found:
                return found[0]
        return None

    def live_nodes(self, run_id: str, live: Ranges, before: int) -> tuple[str, ...]:
        """The nodes that have a live checkpoint below `before`, sorted."""
        if before <= 1:  # there is nothing but the start
            return ()
        spans = _spans(live, before)
        return tuple(
            node_id
            for node_id in self.node_ids(run_id)
            if any(self.newest_checkpoint(run_id, after=after, before=end, node_id=node_id) for after, end in spans)
        )

    def live_entry(self, run_id: str, live: Ranges) -> RecordEntry | None:
        """`live_checkpoint` without its payload."""
        for after, end in _spans(live, None):
            found = self.newest_checkpoint(run_id, after=after, before=end)
            if found is not None:
                return found
        return None


def _spans(live: Ranges, before: int | None) -> builtins.list[tuple[int, int | None]]:
    """The live ranges below `before`, newest first, bounds excluded. Those of branches may overlap: they are joined."""
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
