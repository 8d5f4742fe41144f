"""The status of a run of a graph, node by node. Its records are enough; the user's code is not needed.

`StatusBuilder` arranges the records as a tree of visits. A fork contains the visits of its branches, a map contains its
items, and a node that is a graph contains the visits of that graph's nodes. A record's node id and its `branch` (the path
to it) say where it belongs. Records may be missing, because they were deleted or cannot be read. The builder then makes
up the visits that others belong to.

`_Settler` then follows each path through the graph to its last visit, which is where the run goes on. A node leaves no
record before it ends. So the node at the end of a path is `running` if somebody executes the run, and `next` if nobody
does. The code is pure. The status can be shown as a picture, as a tree or in a console.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from milepost.errors import DeserializeStateError
from milepost.executor.history_values import parent_of
from milepost.model.beginning import completes
from milepost.model.checkpoint import read_envelope
from milepost.model.info import Wait
from milepost.model.ranges import Ranges, is_live
from milepost.model.record import (
    CHECKPOINT,
    END,
    FAILURE,
    FINISH,
    ITEMS,
    OWNER,
    REPLY,
    ROUTE,
    START,
    WAIT,
    Record,
    Segment,
    branch_path,
    parse_time,
    segments_of,
)
from milepost.store import ENDED


@dataclass(slots=True)
class Visit:
    """One visit of a node, an item of a map, or a branch of a fork, with the visits inside it.

    `status` is done, failed, waiting, running, next, or unfinished (it began, and the run left it before its end). `kind`
    is node, fork, map, subgraph, wait, timer, item or branch. `visit` is None for a branch, and while no record says its
    number.
    """

    node_id: str
    """The whole id; for a branch the whole id of its first node."""
    kind: str = "node"
    status: str = "running"
    visit: int | None = None
    attempts: int = 0
    max_attempts: int | None = None
    """The number of attempts that its policy allows, while the newest has failed; None without a policy."""
    failures: int = 0
    duration_ms: float | None = None
    """Milliseconds of the visit, or of its newest attempt if that has failed."""
    last_at: datetime | None = None
    sequence: int | None = None
    """The number of its newest record."""
    next_node: str | None = None
    """The recorded id of the next node, without the ids of the nodes around it."""
    error: str = ""
    """The error of its newest attempt; "" if it has succeeded since."""
    retry_at: datetime | None = None
    wait: Wait | None = None
    reason: str = ""
    """The reason why the newest reply to its wait was refused; "" if none was."""
    total: int | None = None
    """For a map: the number of its items; else None."""
    steps: list[Visit] = field(default_factory=list)
    is_done: bool = False
    """True if its checkpoint is recorded; for a branch, if it has reached its join."""
    failed_at: int = -1
    """The number of the record of its final failure; -1 if there is none."""
    fork: tuple[str, ...] = ()
    """The first nodes of the branches after it."""

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


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The status of a run's nodes according to its records."""

    visits: tuple[Visit, ...]
    """The visits of the run's own graph, in order. Each contains the visits inside it."""
    superseded: tuple[Record, ...]
    """The checkpoints that are superseded."""
    damaged: tuple[int, ...]
    """The numbers of records that cannot be read."""
    shape: Mapping[str, Any]
    """The shape that the graph had when the run began; {} if it is not recorded."""

    @property
    def statuses(self) -> dict[str, str]:
        """The status of each node that the run has reached, by whole id: done, running, failed, next or waiting.

        It is the status of the node's newest visit. Of the nodes inside a fork, a map or a graph only those are here that
        its newest visit has reached.
        """
        return dict(_statuses(self.visits))

    @property
    def maps(self) -> dict[str, tuple[int, int, int]]:
        """The progress of the newest visit of each map: the numbers of done, failed and all items."""
        return {visit.node_id: visit.progress for visit in each(self.visits) if visit.is_counted}

    @property
    def waits(self) -> dict[str, Wait]:
        """The open waits of the run, by the whole id of the node."""
        return {visit.node_id: visit.wait for visit in each(self.visits) if visit.wait is not None}

    @property
    def next_nodes(self) -> tuple[str, ...]:
        """The whole ids of the nodes where the run goes on: one, or one in each open branch."""
        leaves = (visit for visit in each(self.visits) if visit.status in _OPEN and _is_leaf(visit))
        return tuple(dict.fromkeys(visit.node_id for visit in leaves))


_OPEN = frozenset({"running", "failed", "next", "waiting"})


def read_status(records: Iterable[Record], live: Ranges = (), status: str = "running") -> RunStatus:
    """Make the status of a run of a graph.

    `records` are all records of the run in order. `live` and `status` are those of its row.
    """
    builder = StatusBuilder()
    for record in records:
        builder.add(record, is_current=is_live(record.sequence, live))
    is_over = status in ENDED - {"failed", "blocked"} or (builder.finish or {}).get("status") == "finished"
    settler = _Settler(builder, "running" if status == "running" else "next", is_over=is_over)
    settler.settle(builder.root, END)
    return RunStatus(tuple(builder.root.rows), tuple(builder.superseded), tuple(builder.damaged), builder.root.shape)


def each(visits: Sequence[Visit]) -> Iterator[Visit]:
    """Yield all visits, each before the visits inside it."""
    for visit in visits:
        yield visit
        yield from each(visit.steps)


def _is_leaf(visit: Visit) -> bool:
    return visit.kind != "branch" and not any(inner.status in _OPEN for inner in visit.steps)


def _statuses(visits: Sequence[Visit]) -> Mapping[str, str]:
    statuses: dict[str, str] = {}
    inside: dict[str, list[str]] = {}

    def add(visit: Visit) -> None:
        if visit.kind != "branch" and visit.status != "unfinished":
            statuses[visit.node_id] = visit.status
        if not visit.steps:
            return
        if visit.kind != "branch":
            # The parts of an older visit do not belong to this one.
            for node_id in inside.pop(visit.node_id, ()):
                statuses.pop(node_id, None)
            inside[visit.node_id] = [inner.node_id for inner in each(visit.steps)]
        for inner in visit.steps:
            add(inner)

    for visit in visits:
        add(visit)
    return statuses


# -- records as visits -------------------------------------------------------------------------------------


@dataclass(slots=True)
class GraphPath:
    """The visits on one path through one graph, in order. `shape` is that of the graph; {} if it is not known."""

    shape: Mapping[str, Any]
    prefix: str
    """The part of whole ids before the names of its nodes, with the slash; "" for the run's own graph."""
    rows: list[Visit]
    label: str = ""
    entry: str = ""


class StatusBuilder:
    """A builder that arranges records as visits."""

    def __init__(self) -> None:
        self.root = GraphPath({}, "", [])
        self.paths: dict[tuple[str, str], GraphPath] = {("", ""): self.root}
        self.inner: dict[int, GraphPath] = {}
        """The path inside each visit, item or branch, by the `id()` of its `Visit`."""
        self.visits: dict[tuple[str, int], Visit] = {}
        self.superseded: list[Record] = []
        self.damaged: list[int] = []
        self.finish: Mapping[str, Any] | None = None
        self.renewed = -1
        """The number of the newest claim after which earlier failures no longer count; -1 if there is none."""

    def add(self, record: Record, *, is_current: bool) -> None:
        """Add the next record."""
        kind = record.kind
        if not is_current and kind != START:
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
            if completes(fields):
                self._begin(fields)
            if fields.get("reroute"):
                self._reroute(fields.get("overrides", fields.get("from")))
            if self.finish is not None or fields.get("verb") == "retry":
                self.renewed, self.finish = record.sequence, None
        elif kind == FINISH:
            self.finish = fields
        elif record.node_id and kind in _HANDLERS:
            _HANDLERS[kind](self, record, fields)

    def _begin(self, fields: Mapping[str, Any]) -> None:
        shape = fields.get("shape")
        self.root.shape = shape if isinstance(shape, dict) else {}
        self.root.entry = str(fields.get("entry") or self.root.shape.get("entry") or "")

    def _reroute(self, sequence: Any) -> None:
        """Remove the next node of the visit whose checkpoint has this number: its router is asked again."""
        for visit in self.visits.values():
            if visit.is_done and visit.sequence == sequence:
                visit.next_node = None

    # -- where a record belongs ----------------------------------------------------------------------

    def path(self, label: str, prefix: str) -> GraphPath:
        """Return the path of the nodes directly inside the node `prefix` ("" for none) in the branch `label`."""
        path = self.paths.get((label, prefix))
        if path is None:
            path = self.paths[label, prefix] = self._new_path(label, prefix)
        return path

    def _new_path(self, label: str, prefix: str) -> GraphPath:
        segment = _last_segment(label)
        if segment is not None:
            holder_id, number, branch, outer = segment
            if f"{prefix}/".startswith(f"{holder_id}/"):
                if prefix == holder_id:
                    # An item of a function has no path of its own: it is one of the steps of its map.
                    return GraphPath({}, f"{prefix}/", self._map(outer, holder_id, number).steps, label)
                if prefix == f"{holder_id}/{branch}":
                    return self._inside(self._item(outer, holder_id, number, branch), outer, label)
            elif prefix == parent_of(holder_id):
                return self._branch(self._visit(outer, holder_id, number), branch, outer, label)
        return self._inside(self._open(label, prefix, None), label, label)

    def _inside(self, visit: Visit, around: str, label: str) -> GraphPath:
        """Return the path through the graph inside a node or an item of a map."""
        known = self.inner.get(id(visit))
        if known is not None:
            return known
        holder = parent_of(visit.node_id) if visit.kind == "item" else visit.node_id
        outer = self.path(around, parent_of(holder))
        recorded = kind_in(outer.shape, holder).get("shape")
        shape: Mapping[str, Any] = recorded if isinstance(recorded, dict) else {}
        if visit.kind == "node":
            visit.kind = "subgraph"
        path = GraphPath(shape, f"{visit.node_id}/", visit.steps, label, str(shape.get("entry") or ""))
        self.inner[id(visit)] = path
        return path

    def _branch(self, fork: Visit, branch: str, around: str, label: str) -> GraphPath:
        """Return the path of one branch of a fork."""
        outer = self.path(around, parent_of(fork.node_id))
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
        item = self.visits.get((item_id, number))
        if item is None:
            item = self.visits[item_id, number] = Visit(item_id, "item", visit=number)
            holder.steps.append(item)
        return item

    def _map(self, label: str, node_id: str, number: int) -> Visit:
        visit = self._visit(label, node_id, number)
        visit.kind, visit.total = "map", visit.total or 0
        return visit

    def _visit(self, label: str, node_id: str, number: int) -> Visit:
        """Return the visit that another record refers to. Make it up if its own record was deleted."""
        visit = self.visits.get((node_id, number))
        return self._open(label, node_id, number) if visit is None else visit

    def _open(self, label: str, node_id: str, number: int | None) -> Visit:
        """Return the visit with this number if it is known, else the open visit of the node, else a new one."""
        if number is not None:
            known = self.visits.get((node_id, number))
            if known is not None:
                return known
        path = self.path(label, parent_of(node_id))
        segment = _last_segment(label)
        is_item = segment is not None and path.prefix == f"{segment.fork}/"
        newest = path.rows[-1] if path.rows and not is_item else None
        is_same = newest is not None and newest.node_id == node_id and not newest.is_done
        if newest is not None and is_same and (None in {newest.visit, number} or newest.visit == number):
            newest.visit = number if newest.visit is None else newest.visit
            self._note(newest)
            return newest
        kind = "item" if is_item else str(kind_in(path.shape, node_id).get("kind", "node"))
        visit = Visit(node_id, kind, visit=number)
        self._note(visit)
        path.rows.append(visit)
        return visit

    def _note(self, visit: Visit) -> None:
        if visit.visit is not None:
            self.visits[visit.node_id, visit.visit] = visit

    def _at(self, record: Record, fields: Mapping[str, Any]) -> Visit:
        """Return the visit of a record, and note that this is its newest record."""
        visit = self._open(str(fields.get("branch") or ""), record.node_id, record.visit)
        visit.sequence, visit.last_at = record.sequence, time_of(fields.get("timestamp"))
        return visit

    # -- what a record says --------------------------------------------------------------------------

    def _done(self, record: Record, fields: Mapping[str, Any]) -> None:
        visit = self._at(record, fields)
        visit.is_done, visit.status = True, "done"
        visit.attempts = int(fields.get("attempt") or 1)
        visit.duration_ms, visit.max_attempts = fields.get("duration_ms"), None
        visit.next_node = fields.get("next_node")
        visit.error, visit.failed_at, visit.retry_at, visit.wait, visit.reason = "", -1, None, None, ""
        fork = fields.get("fork")
        if fork:
            visit.fork = tuple(map(str, fork))
            visit.kind = "fork" if visit.kind == "node" else visit.kind
            label = str(fields.get("branch") or "")
            for branch in visit.fork:
                self._branch(visit, branch, label, branch_path(label, record.node_id, record.visit, branch))
        self.paths.pop((str(fields.get("branch") or ""), record.node_id), None)

    def _failed(self, record: Record, fields: Mapping[str, Any]) -> None:
        visit = self._at(record, fields)
        visit.failures += 1
        if not visit.is_done:
            visit.attempts = max(visit.attempts, int(fields.get("attempt") or 1))
            visit.duration_ms, visit.max_attempts = fields.get("duration_ms"), fields.get("max_attempts")
        visit.error = f"{fields.get('error_type')}: {fields.get('message')}"
        visit.retry_at = time_of(fields.get("retry_at"))
        visit.failed_at = record.sequence if fields.get("final") or fields.get("given_up") else -1

    def _routed(self, record: Record, fields: Mapping[str, Any]) -> None:
        visit = self._at(record, fields)
        visit.next_node, visit.error, visit.failed_at = fields.get("next_node"), "", -1

    def _given(self, record: Record, fields: Mapping[str, Any]) -> None:
        visit = self._at(record, fields)
        visit.kind, visit.total = "map", int(fields.get("count") or 0)

    def _waits(self, record: Record, fields: Mapping[str, Any]) -> None:
        visit = self._at(record, fields)
        shape = self.path(str(fields.get("branch") or ""), parent_of(record.node_id)).shape
        # If the record is encrypted and the key is missing, only the shape has the signal.
        signal = fields.get("signal") or kind_in(shape, record.node_id).get("signal")
        wait_id = fields.get("wait_id") or f"{record.node_id}#{record.visit}"
        visit.kind = "timer" if signal is None else "wait"
        visit.wait = Wait(str(wait_id), signal, json_of(record), time_of(fields.get("wake_at")))

    def _replied(self, record: Record, fields: Mapping[str, Any]) -> None:
        visit = self._at(record, fields)
        if fields.get("refused"):
            visit.reason = str(fields["refused"])
        else:
            visit.wait, visit.reason = None, ""


_HANDLERS = {
    CHECKPOINT: StatusBuilder._done,
    FAILURE: StatusBuilder._failed,
    ROUTE: StatusBuilder._routed,
    ITEMS: StatusBuilder._given,
    WAIT: StatusBuilder._waits,
    REPLY: StatusBuilder._replied,
}


def put_in_order(visit: Visit) -> None:
    """Sort the items of a map by index. They were recorded in the order in which they ended."""
    if visit.is_counted:
        visit.steps.sort(key=lambda item: int(item.name) if item.name.isdecimal() else 0)


def kind_in(shape: Mapping[str, Any], node_id: str) -> Mapping[str, Any]:
    """Return what a recorded shape says about a map, graph, wait or timer; {} for other nodes."""
    kinds = shape.get("kinds")
    description = kinds.get(node_id.rpartition("/")[2]) if isinstance(kinds, dict) else None
    return description if isinstance(description, dict) else {}


def _last_segment(label: str) -> Segment | None:
    """Return the last segment of a branch's path; None for an empty path."""
    segments = segments_of(label)
    return segments[-1] if segments else None


def time_of(text: Any) -> datetime | None:
    """Read a time in a record; None for no time and for a damaged one."""
    try:
        return None if text is None else parse_time(str(text))
    except ValueError:
        return None


def json_of(record: Record) -> Any:
    """Return the JSON in a record; None if it has none, or if the key to decrypt it is missing."""
    try:
        return json.loads(record.state() or b"null")
    except (DeserializeStateError, ValueError):
        return None


# -- the end of each path ----------------------------------------------------------------------------------------


class _Settler:
    """A pass that sets the status of open visits, and adds visits for the next nodes; both get the status `open_as`."""

    def __init__(self, builder: StatusBuilder, open_as: str, *, is_over: bool) -> None:
        self.builder = builder
        self.open_as = "unfinished" if is_over else open_as
        self.is_over = is_over

    def settle(self, path: GraphPath, until: str) -> str:
        """Follow a path up to the node `until`, and return its status: done if the path has reached that node."""
        for row in path.rows[:-1]:
            self._older(row)
        if not path.rows:
            return self._begins(path, path.entry)
        last = path.rows[-1]
        if not last.is_done:
            return self._visit(last)
        if last.next_node is None:
            # The node's work is done, but its router has not answered yet.
            last.status = self._of_failure(last) or self.open_as
            return last.status
        if last.fork:
            status = self._branches(last)
            if status != "done":
                return status
        self._older(last)
        return "done" if last.next_node == until else self._begins(path, last.next_node)

    def _begins(self, path: GraphPath, node: str) -> str:
        if not node or node == END or self.is_over:
            return self.open_as
        node_id = path.prefix + node
        kind = str(kind_in(path.shape, node_id).get("kind", "node"))
        path.rows.append(Visit(node_id, kind, self.open_as))
        return self.open_as

    def _older(self, row: Visit) -> None:
        """Set the final status of a visit that the run has left, and of the visits inside it."""
        row.wait = None
        for inner in row.steps:
            self._older(inner)
        if row.kind in {"branch", "item"}:
            # Neither a branch nor an item that is a graph has a checkpoint of its own.
            row.is_done = row.is_done or bool(row.steps and row.steps[-1].is_done)
        # A fork that has branches is done. If it has no checkpoint, that was deleted.
        row.status = "done" if row.is_done or row.kind == "fork" else "unfinished"
        put_in_order(row)

    def _branches(self, fork: Visit) -> str:
        statuses = []
        for branch in fork.fork:
            row = next(row for row in fork.steps if row.name == branch)
            row.status = self.settle(self.builder.inner[id(row)], str(fork.next_node))
            row.is_done = row.status == "done"
            statuses.append(row.status)
        return self._together(statuses)

    def _visit(self, visit: Visit) -> str:
        """Set and return the status of a visit that has not ended."""
        inside: list[str] = []
        if visit.is_counted:
            for item in visit.steps:
                self._item(item)
                inside.append(item.status)
            put_in_order(visit)
            if len(visit.steps) < int(visit.total or 0):
                inside.append(self.open_as)
        elif id(visit) in self.builder.inner:
            inside.append(self.settle(self.builder.inner[id(visit)], END))
        visit.status = self._together(inside)
        if visit.status == "done":
            # Its parts are done, but the node itself has not ended yet.
            visit.status = self._of_failure(visit) or self.open_as
        if visit.wait is not None:
            visit.status = "unfinished" if self.is_over else "waiting"
            visit.wait = None if self.is_over else visit.wait
        return visit.status

    def _item(self, item: Visit) -> None:
        path = self.builder.inner.get(id(item))
        if path is not None:
            item.status = self.settle(path, END)
            item.is_done = item.status == "done"
        elif not item.is_done:
            item.status = self._of_failure(item) or self.open_as

    def _of_failure(self, visit: Visit) -> str:
        """Return "failed" if the visit has a final failure that counts; else ""."""
        return "failed" if visit.failed_at > self.builder.renewed else ""

    def _together(self, statuses: Sequence[str]) -> str:
        """Return the status of a visit from those of its parts."""
        order = ("running", "failed", "waiting", "next", "unfinished")
        return next((status for status in order if status in statuses), "done")
