"""The records of a run of a graph, arranged as visits: the user's code is not needed.

The visits of a branch stand below that of its fork, items below their map, and the nodes of a graph inside another one
below the node that walks it. A record's id, and its `branch`, the path to it, say where it belongs. Records may be
missing, because they were deleted or cannot be read; then visits are made up for them if others stand below.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from milepost.errors import DeserializeStateError
from milepost.executor.history import parent_of
from milepost.model.branch_path import Segment, turnings, way_to
from milepost.model.checkpoint import read_envelope
from milepost.model.info import Wait
from milepost.model.record import (
    CHECKPOINT,
    FAILURE,
    FINISH,
    ITEMS,
    OWNER,
    REPLY,
    ROUTE,
    START,
    WAIT,
    Record,
    parse_time,
)

__all__ = ["GraphPath", "StatusBuilder", "Visit", "kind_in", "put_in_order"]


@dataclass(slots=True)
class Visit:
    """One visit of a node, an item of a map, or a branch of a fork, with the visits inside it.

    `status` is done, failed, waiting, running, next, or unfinished (begun, and the run went another way). `kind` is
    node, fork, map, subgraph, wait, timer, item or branch. `visit` is None for a branch, and while no record has its
    number.
    """

    node_id: str
    """The whole id; for a branch that of its first node."""
    kind: str = "node"
    status: str = "running"
    visit: int | None = None
    attempts: int = 0
    failures: int = 0
    duration_ms: float | None = None
    last_at: datetime | None = None
    sequence: int | None = None
    """The number of its newest record."""
    next_node: str | None = None
    """The recorded id of the next node, without the prefix of whole ids."""
    error: str = ""
    """The error of its newest attempt, if it has not succeeded since; else ""."""
    retry_at: datetime | None = None
    wait: Wait | None = None
    reason: str = ""
    """The reason for which the newest reply to its wait was refused; "" for none."""
    total: int | None = None
    """For a map: the number of its items; else None."""
    steps: list[Visit] = field(default_factory=list)
    is_done: bool = False
    """True if its checkpoint is recorded; for a branch, if it has come to its join."""
    failed_at: int = -1
    """The number of the record of its final failure; -1 if there is none."""
    fork: tuple[str, ...] = ()
    """The branches after it, by their first nodes."""

    @property
    def name(self) -> str:
        """The last part of its id."""
        return self.node_id.rpartition("/")[2]

    @property
    def is_counted(self) -> bool:
        """True if its parts are items."""
        return self.total is not None

    @property
    def progress(self) -> tuple[int, int, int]:
        """For a map: the numbers of done, failed and all items."""
        done = sum(item.status == "done" for item in self.steps)
        return done, sum(item.status == "failed" for item in self.steps), max(self.total or 0, len(self.steps))


@dataclass(slots=True)
class GraphPath:
    """The visits on one path through one graph, in order; `shape` is the graph's, as far as it is known."""

    shape: Mapping[str, Any]
    prefix: str
    """The prefix of its nodes in whole ids, with the slash."""
    rows: list[Visit]
    label: str = ""
    entry: str = ""


class StatusBuilder:
    """A builder that arranges records as visits."""

    def __init__(self) -> None:
        self.root = GraphPath({}, "", [])
        self.lanes: dict[tuple[str, str], GraphPath] = {("", ""): self.root}
        self.inner: dict[int, GraphPath] = {}
        """The path inside each visit or branch, by the `id()` of the visit."""
        self.visits: dict[tuple[str, int], Visit] = {}
        self.superseded: list[Record] = []
        self.damaged: list[int] = []
        self.finish: Mapping[str, Any] | None = None
        self.renewed = -1
        """The number of the newest claim that made the failures before it void; -1 if there is none."""

    def add(self, record: Record, *, is_standing: bool) -> None:
        """Take in the next record."""
        kind = record.kind
        if not is_standing and kind != START:
            if kind == CHECKPOINT:
                self.superseded.append(record)
            return
        try:
            fields = read_envelope(record.state() or b"")[0] if record.is_foreign else record.fields()
        except DeserializeStateError:
            if not record.is_foreign:
                self.damaged.append(record.sequence)
                return
            fields = {}
        if kind == START:
            self._begin(fields)
        elif kind == OWNER:
            if fields.get("reroute"):
                self._reroute(fields.get("overrides", fields.get("from")))
            if self.finish is not None or fields.get("verb") == "retry":
                self.renewed, self.finish = record.sequence, None
        elif kind == FINISH:
            self.finish = fields
        elif record.node_id and kind in _TAKERS:
            _TAKERS[kind](self, record, fields)

    def _begin(self, fields: Mapping[str, Any]) -> None:
        shape = fields.get("shape")
        self.root.shape = shape if isinstance(shape, dict) else {}
        self.root.entry = str(fields.get("entry") or self.root.shape.get("entry") or "")

    def _reroute(self, sequence: Any) -> None:
        """Remove the next node of the visit with this record number: its router is asked again."""
        for visit in self.visits.values():
            if visit.is_done and visit.sequence == sequence:
                visit.next_node = None

    # -- where a record belongs ----------------------------------------------------------------------

    def lane(self, label: str, prefix: str) -> GraphPath:
        """Return the path of the nodes right below `prefix` in the branch `label`."""
        found = self.lanes.get((label, prefix))
        if found is None:
            found = self.lanes[label, prefix] = self._new_lane(label, prefix)
        return found

    def _new_lane(self, label: str, prefix: str) -> GraphPath:
        turning = _last_turning(label)
        if turning is not None:
            holder_id, number, branch, outer = turning
            if f"{prefix}/".startswith(f"{holder_id}/"):
                if prefix == holder_id:
                    # An item that a function does has no path of its own: it is one of the steps of its map.
                    return GraphPath({}, f"{prefix}/", self._map(outer, holder_id, number).steps, label)
                if prefix == f"{holder_id}/{branch}":
                    return self._inside(self._item(outer, holder_id, number, branch), outer, label)
            elif prefix == parent_of(holder_id):
                return self._branch(self._visit(outer, holder_id, number), branch, outer, label)
        return self._inside(self._open(label, prefix, None), label, label)

    def _inside(self, visit: Visit, around: str, label: str) -> GraphPath:
        """Return the path through the graph inside a node, or inside an item of a map."""
        known = self.inner.get(id(visit))
        if known is not None:
            return known
        holder = parent_of(visit.node_id) if visit.kind == "item" else visit.node_id
        outer = self.lane(around, parent_of(holder))
        told = kind_in(outer.shape, holder).get("shape")
        shape: Mapping[str, Any] = told if isinstance(told, dict) else {}
        if visit.kind == "node":
            visit.kind = "subgraph"
        made = GraphPath(shape, f"{visit.node_id}/", visit.steps, label, str(shape.get("entry") or ""))
        self.inner[id(visit)] = made
        return made

    def _branch(self, fork: Visit, branch: str, around: str, label: str) -> GraphPath:
        """Return the path of one branch of a fork."""
        outer = self.lane(around, parent_of(fork.node_id))
        row = next((row for row in fork.steps if row.name == branch), None)
        if row is None:
            fork.kind = "fork" if fork.kind == "node" else fork.kind
            row = Visit(outer.prefix + branch, "branch")
            fork.steps.append(row)
            if branch not in fork.fork:
                fork.fork = (*fork.fork, branch)
        known = self.inner.get(id(row))
        if known is None:
            known = self.inner[id(row)] = GraphPath(outer.shape, outer.prefix, row.steps, label, branch)
        return known

    def _item(self, label: str, map_id: str, number: int, index: str) -> Visit:
        holder = self._map(label, map_id, number)
        item_id = f"{map_id}/{index}"
        found = self.visits.get((item_id, number))
        if found is None:
            found = self.visits[item_id, number] = Visit(item_id, "item", visit=number)
            holder.steps.append(found)
        return found

    def _map(self, label: str, node_id: str, number: int) -> Visit:
        found = self._visit(label, node_id, number)
        found.kind, found.total = "map", found.total or 0
        return found

    def _visit(self, label: str, node_id: str, number: int) -> Visit:
        """Return the visit that other records refer to; make it up if its own record was deleted."""
        found = self.visits.get((node_id, number))
        return self._open(label, node_id, number) if found is None else found

    def _open(self, label: str, node_id: str, number: int | None) -> Visit:
        """Return the open visit of a node, or begin one.

        A visit with this number, if there is one, is returned instead.
        """
        if number is not None:
            found = self.visits.get((node_id, number))
            if found is not None:
                return found
        lane = self.lane(label, parent_of(node_id))
        turning = _last_turning(label)
        is_item = turning is not None and lane.prefix == f"{turning.fork}/"
        newest = lane.rows[-1] if lane.rows and not is_item else None
        is_same = newest is not None and newest.node_id == node_id and not newest.is_done
        if newest is not None and is_same and (None in {newest.visit, number} or newest.visit == number):
            newest.visit = number if newest.visit is None else newest.visit
            self._note(newest)
            return newest
        kind = "item" if is_item else str(kind_in(lane.shape, node_id).get("kind", "node"))
        made = Visit(node_id, kind, visit=number)
        self._note(made)
        lane.rows.append(made)
        return made

    def _note(self, visit: Visit) -> None:
        if visit.visit is not None:
            self.visits[visit.node_id, visit.visit] = visit

    def _at(self, record: Record, fields: Mapping[str, Any]) -> Visit:
        """Return the visit of a record, with its newest record and time set."""
        visit = self._open(str(fields.get("branch") or ""), record.node_id, record.visit)
        visit.sequence, visit.last_at = record.sequence, _time(fields.get("timestamp"))
        return visit

    # -- what a record says --------------------------------------------------------------------------

    def _done(self, record: Record, fields: Mapping[str, Any]) -> None:
        visit = self._at(record, fields)
        visit.is_done, visit.status = True, "done"
        visit.attempts = int(fields.get("attempt") or 1)
        visit.duration_ms = fields.get("duration_ms")
        visit.next_node = fields.get("next_node")
        visit.error, visit.failed_at, visit.retry_at, visit.wait, visit.reason = "", -1, None, None, ""
        fork = fields.get("fork")
        if fork:
            visit.fork = tuple(map(str, fork))
            visit.kind = "fork" if visit.kind == "node" else visit.kind
            label = str(fields.get("branch") or "")
            for branch in visit.fork:
                self._branch(visit, branch, label, way_to(label, record.node_id, record.visit, branch))
        self.lanes.pop((str(fields.get("branch") or ""), record.node_id), None)

    def _failed(self, record: Record, fields: Mapping[str, Any]) -> None:
        visit = self._at(record, fields)
        visit.failures += 1
        if not visit.is_done:
            visit.attempts = max(visit.attempts, int(fields.get("attempt") or 1))
        visit.error = f"{fields.get('error_type')}: {fields.get('message')}"
        visit.retry_at = _time(fields.get("retry_at"))
        visit.failed_at = record.sequence if fields.get("final") or fields.get("given_up") else -1

    def _routed(self, record: Record, fields: Mapping[str, Any]) -> None:
        visit = self._at(record, fields)
        visit.next_node, visit.error, visit.failed_at = fields.get("next_node"), "", -1

    def _given(self, record: Record, fields: Mapping[str, Any]) -> None:
        visit = self._at(record, fields)
        visit.kind, visit.total = "map", int(fields.get("count") or 0)

    def _waits(self, record: Record, fields: Mapping[str, Any]) -> None:
        visit = self._at(record, fields)
        shape = self.lane(str(fields.get("branch") or ""), parent_of(record.node_id)).shape
        # Without the key of an encrypted record, only the shape has its signal.
        signal = fields.get("signal") or kind_in(shape, record.node_id).get("signal")
        wait_id = fields.get("wait_id") or f"{record.node_id}#{record.visit}"
        visit.kind = "timer" if signal is None else "wait"
        visit.wait = Wait(str(wait_id), signal, _json(record), _time(fields.get("wake_at")))

    def _replied(self, record: Record, fields: Mapping[str, Any]) -> None:
        visit = self._at(record, fields)
        if fields.get("refused"):
            visit.reason = str(fields["refused"])
        else:
            visit.wait, visit.reason = None, ""


_TAKERS = {
    CHECKPOINT: StatusBuilder._done,
    FAILURE: StatusBuilder._failed,
    ROUTE: StatusBuilder._routed,
    ITEMS: StatusBuilder._given,
    WAIT: StatusBuilder._waits,
    REPLY: StatusBuilder._replied,
}


def put_in_order(visit: Visit) -> None:
    """Sort the items of a map by index: they are recorded in the order in which they end."""
    if visit.is_counted:
        visit.steps.sort(key=lambda item: int(item.name) if item.name.isdecimal() else 0)


def kind_in(shape: Mapping[str, Any], node_id: str) -> Mapping[str, Any]:
    """Return the description that a recorded shape has of a map, graph, wait or timer; {} for other nodes."""
    kinds = shape.get("kinds")
    found = kinds.get(node_id.rpartition("/")[2]) if isinstance(kinds, dict) else None
    return found if isinstance(found, dict) else {}


def _last_turning(label: str) -> Segment | None:
    """Return the last segment of a branch's path; None for an empty path."""
    found = turnings(label)
    return found[-1] if found else None


def _time(text: Any) -> datetime | None:
    try:
        return None if text is None else parse_time(str(text))
    except ValueError:
        return None


def _json(record: Record) -> Any:
    try:
        return json.loads(record.state() or b"null")
    except (DeserializeStateError, ValueError):
        return None
