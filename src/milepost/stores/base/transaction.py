"""One transaction of a store: what the decisions need of it, and the columns that a run has.

`OwnerStore` and the classes that build on it hold all logic, written over these primitives. A new store implements
them, and gets every verb of the contract.
"""

from __future__ import annotations

import abc
import builtins
import functools
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypedDict, Unpack

import msgspec

from milepost.errors import (
    CheckpointCorruptError,
    CheckpointIntegrityError,
    DeserializeStateError,
    RunNotFoundError,
    StatementError,
    StoreError,
    StoreVersionError,
    cut,
    printable,
    shown,
)
from milepost.model.ranges import Ranges, is_live
from milepost.model.record import (
    CHECKPOINT,
    END,
    FAILURE,
    FINISH,
    NOT_JSON,
    OWNER,
    VERBATIM,
    Record,
    format_time,
    make_record,
    new_record,
    parse_time,
)
from milepost.model.seal import link_of
from milepost.store import MOST, Count, Signal, Statement
from milepost.stores.base.fence import Row

if TYPE_CHECKING:
    from milepost.model.info import CheckpointInfo, Wait

# -- The primitives that a backend must offer inside one atomic read or write, and nothing more ----


class WriteConflict(Exception):
    """The exception of a backend that undid a write because something that was read in it has
    changed. The write is tried again."""


class DamagedRow(StoreError):
    """A run that exists and can't be read. The backend is well, and its other runs can be read."""

    is_of_one_run = True


class NewerRow(DamagedRow, StoreVersionError):
    """A run that a newer release wrote. This release treats it as damaged."""


class UnprovenRow(DamagedRow, CheckpointIntegrityError):
    """A run whose row was changed by somebody without a key, or whose key this store does not have."""


class RecordEntry(msgspec.Struct, frozen=True):
    """A record without its payload."""

    record: Record

    def info(self, run_id: str, superseded: bool) -> CheckpointInfo:
        """Build the info that people see. Facts that a damaged header hides keep their defaults."""
        record = self.record
        fields = self._known()
        try:
            moment = parse_time(fields["timestamp"])
        except (KeyError, TypeError, ValueError):
            moment = datetime.fromtimestamp(0.0, UTC)
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
        target = self._known().get("next_node")
        if not isinstance(target, str):
            return None
        around = self.record.node_id.rpartition("/")[0]
        if not around or self.record.packing == VERBATIM:
            return target
        return around if target == END else f"{around}/{target}"

    def _known(self) -> Mapping[str, Any]:
        try:
            return self.record.header_fields()
        except CheckpointCorruptError:
            return {}


_MOST = 1 << 40
"""A limit that no number of runs reaches."""

ENDS = (FAILURE, FINISH, OWNER)
"""The kinds of the records that say how a run ended. An owner record stands between its end and older failures."""


class RowFilters(TypedDict, total=False):
    """The rows that are meant: those that match all of these. None, or none given: all rows."""

    flow: str | None
    statuses: Collection[str] | None
    tags: Mapping[str, str] | None
    updated_before: float | None
    updated_after: float | None
    created_before: float | None
    created_after: float | None
    run_id_prefix: str | None
    above: int | None
    """The position above which rows stand, in the order of creation."""


class Walk(NamedTuple):
    """The rows that a page looks at: those between two positions in the order of creation, the newest first."""

    below: int | None
    above: int | None = None
    end: str | None = None
    """The run with which the walk ends because it is long enough; None: it leads to all that match."""


def matches(row: Row, filters: RowFilters) -> bool:
    """Return whether a row matches all filters, but for its position."""
    flow, statuses, tags = filters.get("flow"), filters.get("statuses"), filters.get("tags") or {}
    before, after = filters.get("updated_before"), filters.get("updated_after")
    return (
        (flow is None or row.flow == flow)
        and (statuses is None or row.status in statuses)
        and tags.items() <= row.tags.items()
        and (before is None or row.updated_at < before)
        and (after is None or row.updated_at > after)
        and begins_as_meant(row.run_id, row.created_at, filters)
    )


def begins_as_meant(run_id: str, created_at: float, filters: RowFilters) -> bool:
    """Return whether the id and the time of the creation of a run match the filters."""
    before, after = filters.get("created_before"), filters.get("created_after")
    return (
        run_id.startswith(filters.get("run_id_prefix") or "")
        and (before is None or created_at < before)
        and (after is None or created_at > after)
    )


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


def saved_record(run_id: str, sequence: int, node_id: str, visit: int, data: bytes, timestamp: float) -> Record:
    """Make the record of bytes that were saved from outside. Its header says where it stands, and where its run goes on if
    the bytes are a JSON object that has a `next_node`.
    """
    try:
        target = _decode_target(data).next_node
    except NOT_JSON:
        target = None
    fields = {"next_node": target, "encoding": VERBATIM}
    record = make_record(run_id, sequence, format_time(timestamp), CHECKPOINT, node_id, visit, fields=fields)
    return record._replace(size=len(data), payload=data, packing=VERBATIM)


class Transaction(abc.ABC):
    """One atomic read or write of a backend. All its reads show one moment. It ends with its block."""

    # -- rows --------------------------------------------------------------------------------------

    @abc.abstractmethod
    def row(self, run_id: str) -> Row | None:
        """Return the run's row, or None. Raise `DamagedRow` if it can't be read."""

    def row_of_owner(self, run_id: str) -> Row | None:
        """Return the row of which only the owner and an open cancel count, with texts that may be encrypted and not proven."""
        return self.row(run_id)

    def proven(self, row: Row) -> Row:
        """Return what `row_of_owner` gave, with its texts in plain. Raise `UnprovenRow` if they can't be proven."""
        return row

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
    def page(self, *, limit: int, after: str | int | None = None, **filters: Unpack[RowFilters]) -> builtins.list[Row]:
        """List rows by creation, newest first, below `after`, which is a run or a position. All filters must match.

        A damaged row hides no other: it is given with what is left of it, and its reason says so.
        """

    def walk(self, after: str | int | None, most: int, **filters: Unpack[RowFilters]) -> Walk:
        """Say which rows a page with these filters looks at, below `after`: at most `most`, if no index leads to those that
        match.
        """
        return Walk(self.position(after) if isinstance(after, str) else after)

    def count(self, limit: int, **filters: Unpack[RowFilters]) -> int:
        """Count the rows that match all filters, up to `limit`, by what stands in the rows."""
        return len(self.page(limit=limit, **filters))

    def flows(self, limit: int) -> builtins.list[str]:
        """List up to `limit` names of flows that have runs, sorted. Runs that were saved from outside have none."""
        return sorted({row.flow for row in self.page(limit=_MOST)} - {""})[:limit]

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
        rows = self.page(statuses={status}, limit=_MOST)
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
    def insert(self, run_id: str, records: Sequence[Record]) -> None:
        """Add records. Their headers are sealed, and their numbers were never used."""

    def put_payload(self, run_id: str, record: Record) -> None:
        """Replace header, payload and packing of a stored record by others that say the same."""
        raise NotImplementedError

    def hold(self, run_id: str) -> None:  # noqa: B027 - most backends need do nothing
        """Keep others from removing or rewriting records of a run until this transaction ends.

        This is for backends where others could do so after this transaction has read, and
        would be noticed only at its end.
        """

    def reread(self, run_id: str) -> bool:
        """Show the run as it is now from here on. Return False if all reads of a transaction show one moment anyway."""
        return False

    def link(self, run_id: str, sequence: int) -> str:
        """Return the link of a record, "" if there is none with that number."""
        stored = self.records(run_id, after=sequence - 1, before=sequence + 1)
        return link_of(stored[0].header) if stored else ""

    @abc.abstractmethod
    def life(self, run_id: str) -> str | None:
        """Return the id of the run's life as its row has it, proven or not; None if there is no such run."""

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

    def ends_of(self, runs: Mapping[str, int]) -> dict[str, builtins.list[Record]]:
        """Return the newest two records of `ENDS` of each run, newest first, that are above the number given with it.

        A run that can't be read is left out.
        """
        ends: dict[str, builtins.list[Record]] = {}
        for run_id, after in runs.items():
            with suppress(DeserializeStateError, DamagedRow, RunNotFoundError):
                ends[run_id] = self.records(run_id, after=after, kinds=ENDS, newest=True, limit=2)
        return ends

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

    def put_signals(self, run_id: str, signals: Sequence[Signal]) -> None:
        """Replace the payloads of stored signals, and `by`, by others that say the same."""
        raise NotImplementedError

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
        for after, end in live_spans(live, before):
            records = self.records(
                run_id, after=after, before=end, kinds=("checkpoint",), node_id=node_id, newest=True, limit=1
            )
            if records:
                return records[0]
        return None

    def point(
        self, run_id: str, live: Ranges, *, before: int | None = None
    ) -> tuple[Record | None, builtins.list[Record]]:
        """Return the newest checkpoint that is not superseded, and all records after it, in order.

        Without such a checkpoint these are all records.
        """
        checkpoint = self.live_checkpoint(run_id, live, before=before)
        return checkpoint, self.records(run_id, after=-1 if checkpoint is None else checkpoint.sequence, before=before)

    def live_nodes(self, run_id: str, live: Ranges, before: int) -> tuple[str, ...]:
        """List the nodes that have a live checkpoint below `before`, sorted."""
        if before <= 1:  # there is nothing but the start
            return ()
        spans = live_spans(live, before)
        return tuple(
            node_id
            for node_id in self.node_ids(run_id)
            if any(self.newest_checkpoint(run_id, after=after, before=end, node_id=node_id) for after, end in spans)
        )

    def live_entries(self, run_id: str, live: Ranges) -> builtins.list[RecordEntry]:
        """List the newest checkpoint of each node that is not superseded, in order."""
        newest: dict[str, RecordEntry] = {}
        for entry in self.entries(run_id):
            if is_live(entry.record.sequence, live):
                newest.pop(entry.record.node_id, None)
                newest[entry.record.node_id] = entry
        return [*newest.values()]

    def live_entry(self, run_id: str, live: Ranges) -> RecordEntry | None:
        """Return the checkpoint of `live_checkpoint` as an entry, without its payload."""
        for after, end in live_spans(live, None):
            entry = self.newest_checkpoint(run_id, after=after, before=end)
            if entry is not None:
                return entry
        return None


def live_spans(live: Ranges, before: int | None) -> builtins.list[tuple[int, int | None]]:
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


# Conversion between the columns of a database's tables and the values of the fence and the journal.
#
# The columns of a damaged database may hold anything. A row or record that can't be read must not hide its
# neighbours: a damaged row of `runs` raises a StoreError for that run alone, and a damaged record is given with an
# empty header, which no check lets pass.


_encode = msgspec.json.Encoder().encode
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_tags = msgspec.json.Decoder(dict[str, str]).decode
_decode_live: Any = msgspec.json.Decoder(Ranges).decode

_Time = Annotated[float, msgspec.Meta(ge=-62_135_596_800, lt=253_402_300_800)]  # what a datetime can hold


@functools.cache
def _waits() -> msgspec.json.Decoder[tuple[Wait, ...]]:
    from milepost.model.info import Wait  # few runs wait

    return msgspec.json.Decoder(tuple[Wait, ...])


class _RowColumns(msgspec.Struct, array_like=True):
    """The types that the columns of a row must have; a damaged database may hold anything in them."""

    run_id: str
    flow: str
    status: Literal["ready", "running", "waiting", "interrupted", "failed", "cancelled", "finished", "blocked"]
    created_at: _Time
    updated_at: _Time
    epoch: Count
    nonce: str
    owner: str
    lease: float
    lease_until: _Time | None
    reason: str
    wake_at: _Time | None
    waiting: str
    crash_count: Count
    crashed_at: Annotated[int, msgspec.Meta(ge=-1, lt=MOST)]
    signals: Count
    cancel: str | None
    degraded: int
    missed: str
    tags: str
    live: str
    worked: int
    sequence: Count
    blocked_by: str
    seal: str
    life: str
    id: int


_ENTRY_SHAPE = (int, str, str, int, int, bytes, str)


def record_values(record: Record) -> tuple[Any, ...]:
    """Return the values to bind for a record, without that of its run."""
    sequence, kind, node_id, visit, size, header, payload, packing = record
    text = None if header is None else (header + b"}").decode()
    return sequence, kind, node_id, visit, size, packing, text, payload


def row_values(row: Row) -> tuple[Any, ...]:
    """Return the values to bind for a row, without its `id`."""
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
        json_text(row.waiting) if row.waiting else "[]",
        row.crash_count,
        row.crashed_at,
        row.signals,
        None if row.cancel is None else _text(row.cancel),
        row.degraded,
        json_text(row.missed) if row.missed else "[]",
        json_text(row.tags) if row.tags else "{}",
        json_text(row.live) if row.live else "[]",
        row.worked,
        row.sequence,
        row.blocked_by,
        row.seal,
        row.life,
    )


def _text(value: str) -> str:
    # A reason may quote any exception, lone surrogates included, which UTF-8 can't carry.
    return value.encode("utf-8", "replace").decode()


def json_text(value: Any) -> str:
    """Return the JSON text of a value for a column."""
    return _encode(value).decode()


def row_of(values: Sequence[Any]) -> Row:
    """Build a row from its columns. Raise `DamagedRow` if they hold no row."""
    try:
        msgspec.convert(values, _RowColumns)
        columns: tuple[Any, ...] = (
            *values[:12],
            _waits().decode(values[12]) if values[12] != "[]" else (),
            *values[13:17],
            bool(values[17]),
            _decode_names(values[18]) if values[18] != "[]" else (),
            _decode_tags(values[19]) if values[19] != "{}" else {},
            _decode_live(values[20]) if values[20] != "[]" else (),
            bool(values[21]),
            *values[22:26],
        )
        return Row(*columns)
    except NOT_JSON as exc:
        raise damaged_row(values[0], exc) from exc


def damaged_row(run_id: Any, exc: Exception) -> DamagedRow:
    """Return the error to raise for a row that can't be read."""
    return DamagedRow(
        f"the row of run {shown(run_id)} is damaged ({cut(printable(str(exc)), 200)}): restore the store from a copy, or "
        f"delete the run with force=True",
        op="read",
    )


def row_to_show(values: Sequence[Any], damage: DamagedRow) -> Row:
    """Build a row to show from what is readable of a damaged one; its status is "blocked", its reason says why."""
    created_at, updated_at = (_time_of(value) for value in values[3:5])
    run_id, flow = str(values[0]), str(values[1])
    return Row(run_id, flow, "blocked", created_at=created_at, updated_at=updated_at, epoch=0, reason=str(damage))


def _time_of(value: Any) -> float:
    try:
        return msgspec.convert(value, _Time)
    except msgspec.ValidationError:
        return 0.0


def _damaged(values: Sequence[Any]) -> Record:
    """Build a record from columns whose types no store writes. It has an empty header and no payload."""
    sequence, kind, node_id, visit, *_ = values
    number, count = (value if type(value) is int else 0 for value in (sequence, visit))
    return Record(number, str(kind), str(node_id), count, 0, b"", None)


def record_of(values: Sequence[Any]) -> Record:
    """Build a record from its columns."""
    sequence, kind, node_id, visit, size, header, packing, payload = values
    if (
        type(sequence) is int
        and type(kind) is str
        and type(node_id) is str
        and type(visit) is int
        and type(size) is int
        and type(header) is bytes
        and type(packing) is str
        and (payload is None or type(payload) is bytes)
    ):
        return new_record((sequence, kind, node_id, visit, size, header.removesuffix(b"}"), payload, packing))
    return _damaged(values)


def entry_of(values: Sequence[Any]) -> RecordEntry:
    """Build a record without its payload from its columns."""
    if (*map(type, values),) != _ENTRY_SHAPE:
        return RecordEntry(_damaged(values))
    sequence, kind, node_id, visit, size, header, packing = values
    return RecordEntry(Record(sequence, kind, node_id, visit, size, header.removesuffix(b"}"), None, packing))
