"""The choice of the records of a run that go when each node keeps its newest visits. It reads and writes nothing.

A pruned run can go on from its remaining points as before. So more stays than the newest visits: the records by which
visits are counted, visits that are under way, and all that a remaining visit needs; see `_Kept._needed_by`. Of all
else, the kinds in `DROPPED` go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from milepost.errors import CheckpointCorruptError
from milepost.model.ranges import Ranges, is_live
from milepost.model.record import CHECKPOINT, FAILURE, FINISH, ITEMS, OWNER, ROLLBACK, ROUTE, WAIT, Record, turnings

__all__ = ["CONSIDERED", "Trace", "surplus", "trace_of"]

DROPPED = frozenset({CHECKPOINT, FAILURE, ROUTE, ITEMS, WAIT, ROLLBACK})
"""The kinds of records that go with their visit.

A reply stays, because it says that its signal was used: without it the next wait would be given that signal again.
"""
CONSIDERED = tuple(sorted({*DROPPED, OWNER, FINISH} - {CHECKPOINT}))
"""The kinds that the choice needs to see besides checkpoints."""
_COUNTING = frozenset({CHECKPOINT, FAILURE, OWNER})
"""The kinds of records by which visits are counted: a node's newest one has the number of its last visit."""

Visit = tuple[str, int]


class Trace(NamedTuple):
    """The facts about a record that the choice needs."""

    sequence: int
    kind: str
    node_id: str
    visit: int
    branch: str = ""
    """The path of a record inside a fork: `fork#visit/branch`, the outermost first. Empty outside forks."""
    needs: int | None = None
    """The number of the checkpoint that the record refers to."""
    is_turn: bool = False
    """True if the record begins a continuation. Ends before it are no longer the end of the run."""

    @property
    def of(self) -> Visit:
        """The visit that the record belongs to."""
        return self.node_id, self.visit


def trace_of(record: Record) -> Trace:
    """Build the trace of a record, with or without its payload. If its header is damaged, use only its place."""
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
    """Return the numbers of the records that go. `traces` is the whole journal in order; each
    node keeps `keep_last` visits."""
    kept = _Kept(traces, live, keep_last)
    return [trace.sequence for trace in traces if not kept.has(trace)]


class _Kept:
    """The records of a journal that stay."""

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
        # Crashes are counted from the newest checkpoint of all, even if it is superseded.
        self._visits.update(trace.of for trace in (*newest.values(), *self._points[-1:]))
        self._close(traces)

    def has(self, trace: Trace) -> bool:
        """Return whether a record stays."""
        if trace.kind not in DROPPED or not trace.node_id or trace.of in self._visits:
            return True
        # A visit without a checkpoint may be under way. It goes once it is older than the visits that stay.
        is_open = trace.visit not in self._completed.get(trace.node_id, ())
        return is_open and trace.visit > self._oldest.get(trace.node_id, -1)

    def _is_live(self, trace: Trace) -> bool:
        return is_live(trace.sequence, self._live)

    def _close(self, traces: Sequence[Trace]) -> None:
        """Add the visits that the remaining records need, and those that these need in turn."""
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
        """Yield the visits without which nobody could go on from a record.

        An override or an end needs the point that it refers to, but an end before the newest continuation does not. To
        go on inside a fork takes the visit that began it and what its other branches have done. To go on inside a
        sub-graph takes the state around it.
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
        """Return the newest live point before `sequence` that belongs to no node below `prefix`."""
        for point in reversed(self._points):
            if point.sequence < sequence and not point.node_id.startswith(prefix) and self._is_live(point):
                return point
        return None


def _fork_of(trace: Trace) -> Visit:
    """Return the visit of the outermost fork that a record is in."""
    found = turnings(trace.branch)
    return (found[0].fork, found[0].visit) if found else (trace.branch, 0)
