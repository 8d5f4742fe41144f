"""Which records of a run go when each node keeps its newest visits: a decision, with nothing read or written.

What stays can be gone on with as before. So more stays than the newest visits: what tells how visits go on counting, visits
that are under way, and whatever a visit that stays can't do without, which `_Kept._needed_by` tells. Of all else, the kinds in
`DROPPED` go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from milepost.errors import CheckpointCorruptError
from milepost.model.branch_path import turnings
from milepost.model.record import CHECKPOINT, FAILURE, FINISH, ITEMS, OWNER, ROLLBACK, ROUTE, WAIT, Record
from milepost.store import Ranges
from milepost.stores.base.fence import is_live

__all__ = ["CONSIDERED", "Trace", "surplus", "trace_of"]

DROPPED = frozenset({CHECKPOINT, FAILURE, ROUTE, ITEMS, WAIT, ROLLBACK})
"""The kinds of records that go with their visit.

A reply stays, for it says that its signal was used: without it the next wait would be given that signal again.
"""
CONSIDERED = tuple(sorted({*DROPPED, OWNER, FINISH} - {CHECKPOINT}))
"""The kinds besides checkpoints that the decision has to know of."""
_COUNTING = frozenset({CHECKPOINT, FAILURE, OWNER})
"""The kinds of which the newest one of a node tells the number of its last visit."""

Visit = tuple[str, int]


class Trace(NamedTuple):
    """What the decision needs to know of a record."""

    sequence: int
    kind: str
    node_id: str
    visit: int
    branch: str = ""
    """Of a record inside a fork: `fork#visit/branch`, the outermost first."""
    needs: int | None = None
    """The number of the checkpoint that the record speaks of."""
    is_turn: bool = False
    """Whether a turn begins with it: the ends before it are no longer that of the run."""

    @property
    def of(self) -> Visit:
        """The visit that the record is of."""
        return self.node_id, self.visit


def trace_of(record: Record) -> Trace:
    """What a record, with or without its payload, tells. Of one with a damaged header, what its place tells."""
    header, branch, needs, is_turn = record.header or b"", "", None, False
    if b'"branch"' in header or record.kind in {OWNER, FINISH}:
        try:
            fields = record.fields()
        except CheckpointCorruptError:
            fields = {}
        branch = str(fields.get("branch") or "")
        if record.kind == FINISH:
            needs = fields.get("result")
        elif record.kind == OWNER:
            is_turn = fields.get("verb") == "continue"
            amends = record.payload is not None or "reroute" in fields
            needs = fields.get("from") if amends and not is_turn else None
    return Trace(record.sequence, record.kind, record.node_id, record.visit, branch, needs, is_turn)


def surplus(traces: Sequence[Trace], live: Ranges, keep_last: int) -> list[int]:
    """The numbers of the records that go, of a journal's `traces` in order, where each node keeps `keep_last` visits."""
    kept = _Kept(traces, live, keep_last)
    return [trace.sequence for trace in traces if not kept.has(trace)]


class _Kept:
    """What stays of a journal."""

    def __init__(self, traces: Sequence[Trace], live: Ranges, keep_last: int) -> None:
        self._live = live
        self._points = [trace for trace in traces if trace.kind == CHECKPOINT]
        self._point_at = {point.sequence: point for point in self._points}
        self._turn = max((trace.sequence for trace in traces if trace.is_turn and self._is_live(trace)), default=-1)
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
        # A count of crashes goes by the newest checkpoint of all, superseded or not.
        self._visits.update(trace.of for trace in (*newest.values(), *self._points[-1:]))
        self._close(traces)

    def has(self, trace: Trace) -> bool:
        """Whether a record stays."""
        if trace.kind not in DROPPED or not trace.node_id or trace.of in self._visits:
            return True
        # A visit without a checkpoint, which may be under way, goes once it is older than those that stay.
        is_open = trace.visit not in self._completed.get(trace.node_id, ())
        return is_open and trace.visit > self._oldest.get(trace.node_id, -1)

    def _is_live(self, trace: Trace) -> bool:
        return is_live(trace.sequence, self._live)

    def _close(self, traces: Sequence[Trace]) -> None:
        """Add what that which stays can't do without, and what that can't do without in turn."""
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
        """The visits without which nobody could go on from a record.

        An override or an end, but not that of an earlier turn, needs the point that it speaks of; whoever goes on inside a
        fork, where that began and what its other branches have done; whoever goes on inside a sub-graph, the state
        around it.
        """
        is_past = trace.kind == FINISH and trace.sequence < self._turn
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
        """The newest live point before a number that is of no node below `prefix`."""
        for point in reversed(self._points):
            if point.sequence < sequence and not point.node_id.startswith(prefix) and self._is_live(point):
                return point
        return None


def _fork_of(trace: Trace) -> Visit:
    """The visit of the outermost fork that a record is in."""
    found = turnings(trace.branch)
    return (found[0].fork, found[0].visit) if found else (trace.branch, 0)
