"""Retention and pruning: the choice of the records that are removed, and their removal.

The first part decides which records of a run are removed. The second part finds runs, and prunes or deletes them one by
one.
"""

from __future__ import annotations

import builtins
import functools
import logging
import math
import typing
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, Unpack

import msgspec
from msgspec.structs import replace

from milepost.errors import CheckpointCorruptError, DeserializeStateError, OptionError, shown
from milepost.model.durations import as_seconds
from milepost.model.ranges import Ranges, is_live
from milepost.model.record import (
    CHECKPOINT,
    CONTINUE,
    FAILURE,
    FINISH,
    ITEMS,
    OWNER,
    ROLLBACK,
    ROUTE,
    WAIT,
    Record,
    segments_of,
)
from milepost.store import Append, Status, StoreOptions, Token, Verdict
from milepost.stores.base import fence
from milepost.stores.base.fence import Row
from milepost.stores.base.owner import OwnerStore
from milepost.stores.base.transaction import DamagedRow, Transaction, WriteConflict

if TYPE_CHECKING:
    from milepost.model.upkeep import Pruned, Retention

# -- The choice of records --------------------------------------------------------------------------
#
# Each node keeps its newest visits. This part decides which records of a run are removed; it reads and writes nothing.
#
# A pruned run can go on from its remaining points as before. So more than the newest visits stays: the records by which
# visits are counted, visits in progress, and everything that a remaining visit needs; see `_RemainingRecords._needed_by`.
# Of all other records, those of the kinds in `DROPPED` are removed.

DROPPED = frozenset({CHECKPOINT, FAILURE, ROUTE, ITEMS, WAIT, ROLLBACK})
"""The kinds of records that are removed with their visit.

A reply stays, because it says that its signal was used. Without it, the next wait would get that signal again.
"""
CONSIDERED = tuple(sorted({*DROPPED, OWNER, FINISH} - {CHECKPOINT}))
"""The kinds of records, besides checkpoints, that the choice depends on."""
_COUNTING = frozenset({CHECKPOINT, FAILURE, OWNER})
"""The kinds of records by which visits are counted: the newest of them has the number of a node's last visit."""

Visit = tuple[str, int]


class Trace(NamedTuple):
    """The facts about a record on which the choice depends."""

    sequence: int
    kind: str
    node_id: str
    visit: int
    branch: str = ""
    """The path of a record inside a fork: `fork#visit/branch`, the outermost first. Empty outside forks."""
    needs: int | None = None
    """The number of the checkpoint that the record refers to."""

    @property
    def of(self) -> Visit:
        """The visit that the record belongs to."""
        return self.node_id, self.visit


def trace_of(record: Record) -> Trace:
    """Make the trace of a record, which may lack its payload. If its header is damaged, the trace only has its place."""
    header, branch, needs = record.header or b"", "", None
    if b'"branch"' in header or record.kind in {OWNER, FINISH}:
        try:
            fields = record.fields()
        except CheckpointCorruptError:
            fields = {}
        branch = str(fields.get("branch") or "")
        if record.kind == FINISH:
            needs = fields.get("result")
        elif record.kind == OWNER:
            amends = (record.payload is not None or "reroute" in fields) and fields.get("verb") != CONTINUE
            needs = fields.get("from") if amends else None
    return Trace(record.sequence, record.kind, record.node_id, record.visit, branch, needs)


def surplus(traces: Sequence[Trace], live: Ranges, keep_last: int) -> list[int]:
    """Return the numbers of the records to remove. `traces` is the whole journal in order; each node keeps `keep_last`
    visits."""
    remaining = _RemainingRecords(traces, live, keep_last)
    return [trace.sequence for trace in traces if not remaining.has(trace)]


class _RemainingRecords:
    """The records of a journal that are not removed."""

    def __init__(self, traces: Sequence[Trace], live: Ranges, keep_last: int) -> None:
        self._live = live
        self._points = [trace for trace in traces if trace.kind == CHECKPOINT]
        self._point_at = {point.sequence: point for point in self._points}
        ends = (trace.sequence for trace in traces if trace.kind == FINISH and trace.needs is not None)
        self._end = max(filter(lambda sequence: is_live(sequence, live), ends), default=-1)
        self._forks: dict[Visit, set[Visit]] = {}
        for trace in traces:
            if trace.branch and self._is_live(trace):
                self._forks.setdefault(_fork_of(trace), set()).add(trace.of)
        self._completed: dict[str, dict[int, tuple[bool, int]]] = {}
        for point in self._points:
            rank = self._is_live(point), point.sequence
            visits = self._completed.setdefault(point.node_id, {})
            visits[point.visit] = max(rank, visits.get(point.visit, rank))
        self._visits: set[Visit] = set()
        self._oldest: dict[str, int] = {}
        for node_id, visits in self._completed.items():
            best = sorted(visits, key=lambda visit: visits[visit], reverse=True)[:keep_last]
            self._visits.update((node_id, visit) for visit in best)
            self._oldest[node_id] = min(best) if len(visits) > keep_last else -1
        newest = {trace.node_id: trace for trace in traces if trace.kind in _COUNTING and trace.node_id}
        # Crashes are counted from the newest checkpoint of all, even if it is superseded.
        self._visits.update(trace.of for trace in (*newest.values(), *self._points[-1:]))
        self._close(traces)

    def has(self, trace: Trace) -> bool:
        """Return whether a record stays."""
        if trace.kind not in DROPPED or not trace.node_id or trace.of in self._visits:
            return True
        # A visit without a checkpoint may be in progress. It is removed once it is older than the visits that stay.
        is_open = trace.visit not in self._completed.get(trace.node_id, ())
        return is_open and trace.visit > self._oldest.get(trace.node_id, -1)

    def _is_live(self, trace: Trace) -> bool:
        return is_live(trace.sequence, self._live)

    def _close(self, traces: Sequence[Trace]) -> None:
        """Add the visits that the remaining records need, and those that these visits need in turn."""
        by_visit: dict[Visit, list[Trace]] = {}
        for trace in traces:
            if trace.branch or trace.needs is not None or "/" in trace.node_id:
                by_visit.setdefault(trace.of, []).append(trace)
        pending = [trace for of_visit in by_visit.values() for trace in of_visit if self.has(trace)]
        while pending:
            trace = pending.pop()
            for visit in self._needed_by(trace) if self._is_live(trace) else ():
                if visit not in self._visits:
                    self._visits.add(visit)
                    pending += by_visit.get(visit, ())

    def _needed_by(self, trace: Trace) -> Iterator[Visit]:
        """Yield the visits that are needed to go on from a record.

        An override needs the point that it refers to, and so does the newest end: a turn that follows a turn that failed
        begins there. A record inside a fork needs the visit that began the fork, and the visits of its other branches. A
        record inside a sub-graph needs the state around the sub-graph.
        """
        is_past = trace.kind == FINISH and trace.sequence < self._end
        if trace.needs in self._point_at and not is_past:
            yield self._point_at[trace.needs].of
        if trace.branch:
            fork = _fork_of(trace)
            yield fork
            yield from self._forks.get(fork, ())
        parts = trace.node_id.split("/")
        for depth in range(1, len(parts)):
            around = self._newest_before(trace.sequence, "/".join(parts[:depth]) + "/")
            if around is not None:
                yield around.of

    def _newest_before(self, sequence: int, prefix: str) -> Trace | None:
        """Return the newest live point before `sequence` that belongs to no node below `prefix`."""
        for point in reversed(self._points):
            if point.sequence < sequence and not point.node_id.startswith(prefix) and self._is_live(point):
                return point
        return None


def _fork_of(trace: Trace) -> Visit:
    """Return the visit of the outermost fork that a record is in."""
    segments = segments_of(trace.branch)
    return (segments[0].fork, segments[0].visit) if segments else (trace.branch, 0)


# -- Pruning: the deletion of old runs, and of visits that nobody needs any more -------------------


_logger = logging.getLogger("milepost")

_PAGE = 256
_MOST = 1 << 40
"""A limit on the number of runs that is never reached."""
_ALWAYS_PRUNED = frozenset({"finished", "cancelled"})
_SWEEP = 60.0
"""Least seconds between two searches for old runs that the end of a run starts."""
_AT_AN_END = 100
"""Greatest number of old runs that are deleted at the end of a run, so that this does not take long."""
_OVERLAP = 60.0
"""Seconds by which two searches of a worker for ended runs overlap, in case clocks differ."""
_TRIES = 5
_SHARE = 20
"""The share of its time that a live run may spend on pruning, as a divisor: 20 means a twentieth."""


class _Pace(msgspec.Struct):
    """The pace at which the owner of a live run prunes it."""

    not_before: float = -math.inf
    """The time on the monotonic clock before which the run is not pruned again, so that pruning keeps to its share."""
    visits: dict[str, int] = {}
    """For each node, the visit at which the run was pruned last."""


class _Surplus(msgspec.Struct):
    """The records of a live run that are removed when its next records are appended."""

    before: int
    """The number of the first of those next records."""
    numbers: builtins.list[int]
    began: float | None = None
    """The time on the monotonic clock at which the removal began."""


class PruneRequest(msgspec.Struct, frozen=True):
    """A request to prune the runs that have one of the `statuses`.

    Those that have not changed after `before` (POSIX seconds) are deleted. In the others each node keeps its newest
    `keep_last` visits.
    """

    statuses: frozenset[str]
    before: float | None = None
    keep_last: int | None = None
    is_dry: bool = False

    def is_old(self, updated_at: float) -> bool:
        """Return whether a run that last changed at `updated_at` is to be deleted."""
        return self.before is not None and updated_at <= self.before


class Pruning(OwnerStore):
    """A store that deletes old runs and old visits, on request or by its retention."""

    def __init__(self, **options: Unpack[StoreOptions]) -> None:
        super().__init__(**options)
        self._swept_at: float | None = None
        """The time on the monotonic clock at which this object last searched for old runs at the end of a run."""
        self._thinned_at: float | None = None
        """This object has pruned all runs that had ended by this time."""
        self._paces: dict[str, _Pace] = {}
        self._surpluses: dict[str, _Surplus] = {}
        """For each run, the records that its present append removes."""

    def prune(
        self,
        *,
        older_than: float | timedelta | None = None,
        keep_last: int | None = None,
        statuses: str | Iterable[str] = ("finished", "cancelled"),
        dry_run: bool = False,
    ) -> Pruned:
        from milepost.model.upkeep import Retention

        retention = Retention(older_than, keep_last)
        if retention == Retention():
            raise OptionError(
                "prune without older_than and keep_last has nothing to go by: say how old a run must be to be deleted, or "
                "how many visits of each node to keep",
                option="older_than",
            )
        wanted = frozenset({statuses} if isinstance(statuses, str) else statuses)
        unknown = sorted(map(shown, wanted - set(typing.get_args(Status))))
        if unknown:
            raise OptionError(
                f"no run has the status {', '.join(unknown)}: choose among {', '.join(typing.get_args(Status))}",
                option="statuses",
            )
        return self._prune(PruneRequest(wanted, self._cutoff(retention), retention.keep_last, dry_run))

    def tidy(self, run_id: str | None = None) -> None:
        from milepost.model.upkeep import Retention

        retention = self.retention
        if retention is None or retention == Retention():
            return
        try:
            if run_id is None:
                self._tidy_all(retention)
            else:
                self._tidy_after(run_id, retention)
        except Exception as exc:  # a run that has ended well must not seem to have failed
            extra = {} if run_id is None else {"run_id": run_id}
            _logger.warning("the store %s could not be pruned by its retention: %s", self.place, exc, extra=extra)

    def _tidy_after(self, run_id: str, retention: Retention) -> None:
        if retention.keep_last is not None:
            self._thin(run_id, PruneRequest(_ALWAYS_PRUNED, keep_last=retention.keep_last))
        now = self.clock.monotonic()
        if retention.older_than is None or (self._swept_at is not None and now - self._swept_at < _SWEEP):
            return
        self._swept_at = now
        pruned = self._prune(PruneRequest(_ALWAYS_PRUNED, self._cutoff(retention)), most=_AT_AN_END)
        if len(pruned.deleted) >= _AT_AN_END:
            self._swept_at = None

    def _tidy_all(self, retention: Retention) -> None:
        if retention.older_than is not None:
            self._prune(PruneRequest(_ALWAYS_PRUNED, self._cutoff(retention)))
        if retention.keep_last is not None:
            began = self.clock.time()
            # A run that has ended does not change without a new `updated_at`.
            self._prune(PruneRequest(_ALWAYS_PRUNED, keep_last=retention.keep_last), after=self._thinned_at)
            self._thinned_at = began - _OVERLAP

    def _cutoff(self, retention: Retention) -> float | None:
        if retention.older_than is None:
            return None
        return self.clock.time() - as_seconds(retention.older_than, "older_than")

    def _prune(self, request: PruneRequest, *, after: float | None = None, most: int = _MOST) -> Pruned:
        """Prune runs that have changed after the time `after`. Stop once `most` of them were deleted or pruned."""
        deleted: builtins.list[str] = []
        thinned: builtins.list[str] = []
        records = 0
        for updated_at, run_id in self._candidates(request, after):
            if len(deleted) + len(thinned) >= most:
                break
            try:
                if request.is_old(updated_at):
                    if self._forget(run_id, request):
                        deleted.append(run_id)
                elif request.keep_last is not None:
                    removed = self._thin(run_id, request)
                    if removed:
                        thinned.append(run_id)
                        records += removed
            except (DamagedRow, DeserializeStateError) as exc:  # the other runs are pruned all the same
                _logger.warning("run %r is not pruned: %s", run_id, exc, extra={"run_id": run_id})
        from milepost.model.upkeep import Pruned

        return Pruned(tuple(deleted), tuple(thinned), records)

    def _candidates(self, request: PruneRequest, changed_after: float | None) -> Iterator[tuple[float, str]]:
        """Yield the time of the last change and the id of runs that may be pruned. For each status the oldest change is first.

        Runs are read page by page, and each is checked again before it is pruned. Runs of a page may change or be deleted
        meanwhile, so the next page begins at a time, not at a run. Runs that end from now on are left to the next call.
        So this comes to an end even if runs end faster than they are pruned.
        """
        newest = self.clock.time() if request.before is None or request.keep_last is not None else request.before
        until = newest + 1.0  # a backend may round times
        if "blocked" in request.statuses:
            yield from self._blocked()
        for status in sorted({"running" if status == "dead" else status for status in request.statuses} - {"blocked"}):
            after = (-math.inf if changed_after is None else changed_after, "")
            while True:
                with self._reading("prune") as tx:
                    page = tx.rested(status, after=after, until=until, limit=_PAGE)
                if not page:
                    break
                yield from page
                after = page[-1]

    def _blocked(self) -> Iterator[tuple[float, str]]:
        """Yield the time of the last change and the id of runs that are blocked or can't be read."""
        after: int | None = None
        while True:
            with self._reading("prune") as tx:
                page = tx.page(limit=_PAGE, after=after)
                after = tx.position(page[-1].run_id) if page else None
            yield from ((row.updated_at, row.run_id) for row in page if row.status == "blocked")
            if after is None:
                return

    def _row_meant(self, tx: Transaction, run_id: str, request: PruneRequest) -> Row | None:
        """Return the row of a run if the request names its status and no owner can be alive; else None. Raise `DamagedRow`."""
        row = tx.row(run_id)
        if row is None:
            return None
        state = self._state(row, self.clock.time())
        is_meant = state in {"free", "ended"} and fence.shown_status(row, state) in request.statuses
        return row if is_meant else None

    def _forget(self, run_id: str, request: PruneRequest) -> bool:
        """Delete a run if the request still applies to it, and return whether it does. A dry run deletes nothing."""

        def body(tx: Transaction) -> bool:
            try:
                row = self._row_meant(tx, run_id, request)
                is_meant = row is not None and request.is_old(row.updated_at)
            except DamagedRow:
                # A damaged row does not say whether the run is executed now.
                is_meant = "blocked" in request.statuses or not request.statuses & {"running", "dead"}
                if not is_meant:
                    raise
            if not is_meant:
                return False
            if not request.is_dry:
                tx.remove_run(run_id)
            return True

        if request.is_dry:
            with self._reading("prune") as tx:
                return body(tx)
        was_meant = self._change("prune", body)
        if was_meant:
            self._held.pop(run_id, None)
            self._drop_live(run_id)
        return was_meant

    def _thin(self, run_id: str, request: PruneRequest) -> int:
        """Prune the visits of a run and return the number of removed records. A dry run only counts them."""
        # A transaction that only reads finds the records, so that a long journal blocks no writer.
        for _ in range(_TRIES):
            with self._reading("prune") as tx:
                row = self._row_meant(tx, run_id, request)
                numbers = [] if row is None else self._surplus(tx, row, request.keep_last or 1)
                newest = tx.newest(run_id)
            if row is None or not numbers or request.is_dry:
                return len(numbers)
            removed = self._change("prune", functools.partial(self._take_out, row, request, newest, numbers))
            if removed is not None:
                return removed
        return 0  # others keep changing the run: a later call will prune it

    # -- live runs: by their owner, as it appends ------------------------------------------------------

    def _find_surplus(self, batch: Sequence[Append]) -> bool:
        keep_last = None if self.retention is None else self.retention.keep_last
        if keep_last is None:
            return False
        for append in batch:
            self._surpluses.pop(append.token.run_id, None)  # left by an append that failed
        due = [append for append in batch if self._is_due(append, keep_last)]
        return sum(self._finds_surplus(append, keep_last) for append in due) > 0

    def _is_due(self, append: Append, keep_last: int) -> bool:
        """Return whether a node had `keep_last` visits since it was last pruned, and pruning has not used up its share of
        the time."""
        is_due = False
        for record in append.records:
            if record.kind == CHECKPOINT and record.visit >= 2 * keep_last:
                pace = self._paces.setdefault(append.token.run_id, _Pace())
                if record.visit - pace.visits.get(record.node_id, keep_last) >= keep_last:
                    is_due = self.clock.monotonic() >= pace.not_before
                    if is_due:
                        pace.visits[record.node_id] = record.visit
        return is_due

    def _finds_surplus(self, append: Append, keep_last: int) -> bool:
        """Return whether the write of `append` removes records. A transaction that only reads finds them, so that it blocks
        no writer."""
        run_id, first = append.token.run_id, append.records[0].sequence
        began = self.clock.monotonic()
        numbers: builtins.list[int] = []
        try:
            with self._reading("append") as tx:
                row = tx.row(run_id)
                # Nobody but the owner writes to the run as long as its token is current.
                if row is not None and fence.judge(row, append, tx.newest(run_id)) == "written":
                    numbers = [n for n in self._surplus(tx, row, keep_last, append.records) if n < first]
        except Exception as exc:  # the run goes on, and its next write reports the fault
            self._warn_of_surplus(run_id, exc)
        now = self.clock.monotonic()
        self._paces.setdefault(run_id, _Pace()).not_before = now + (_SHARE - 1) * (now - began)
        if numbers:
            self._surpluses[run_id] = _Surplus(first, numbers)
            if self._bases is not None:
                self._bases.part_from(run_id, frozenset(numbers))
        return bool(numbers)

    def _take_out_surplus(self, tx: Transaction, run_id: str, records: Sequence[Record]) -> None:
        surplus_numbers = self._surpluses.get(run_id)
        if surplus_numbers is None or surplus_numbers.before != records[0].sequence:
            return
        # The records are removed in the same write that adds new ones. A claim that was prepared before this fails because
        # of the new numbers, which is right: its point may be removed.
        surplus_numbers.began = self.clock.monotonic()
        try:
            tx.remove_records(run_id, surplus_numbers.numbers)
        except WriteConflict:
            raise
        except Exception as exc:  # a run must not fail because of pruning: the write is tried again without it
            self._warn_of_surplus(run_id, exc)
            del self._surpluses[run_id]
            raise WriteConflict from exc

    def _warn_of_surplus(self, run_id: str, exc: Exception) -> None:
        _logger.warning("run %r is not pruned: %s", run_id, exc, extra={"run_id": run_id})

    def _settle(self, appends: Sequence[Append], verdicts: Sequence[Verdict]) -> None:
        super()._settle(appends, verdicts)
        for append in appends if self._surpluses else ():
            surplus_numbers = self._surpluses.pop(append.token.run_id, None)
            pace = self._paces.get(append.token.run_id)
            if surplus_numbers is not None and surplus_numbers.began is not None and pace is not None:
                pace.not_before += _SHARE * (self.clock.monotonic() - surplus_numbers.began)

    def _drop(self, token: Token) -> None:
        super()._drop(token)
        if token.run_id not in self._held:
            self._paces.pop(token.run_id, None)

    # -- which records -------------------------------------------------------------------------------

    def _surplus(self, tx: Transaction, row: Row, keep_last: int, coming: Sequence[Record] = ()) -> builtins.list[int]:
        """Return the numbers of the records to remove, as if the `coming` ones were in the journal already."""
        run_id = row.run_id
        if tx.newest(run_id) + len(coming) <= keep_last:
            return []
        traces = [trace_of(entry.record) for entry in tx.entries(run_id)]
        after, page = -1, [Record(-1, "", "", 0, 0, None, None)]
        while page:
            page = tx.records(run_id, after=after, kinds=CONSIDERED, limit=_PAGE)
            traces += [trace_of(record) for record in page]
            after = page[-1].sequence if page else after
        traces += map(trace_of, coming)
        traces.sort()
        # The newest record stays, since the one after a deletion names what went.
        newest = traces[-1].sequence
        return [number for number in surplus(traces, row.live, keep_last) if number < newest]

    def _take_out(
        self, row: Row, request: PruneRequest, newest: int, numbers: builtins.list[int], tx: Transaction
    ) -> int | None:
        """Remove records from a journal. Return None if it has changed since it was read with `row`."""
        now = self._row_meant(tx, row.run_id, request)
        if now is None or now.epoch != row.epoch or tx.newest(row.run_id) != newest:
            return None
        removed = tx.remove_records(row.run_id, numbers)
        # The epoch is raised, so a claim that was prepared before fails and is prepared again: its point may be removed.
        tx.put_row(replace(now, epoch=now.epoch + 1))
        return removed
