"""The status of a run of a graph, node by node, by its records alone: the user's code is not needed.

Each path through the graph is followed to the end of its visits, which is where the run goes on. A node leaves no
record before it ends, so the node at the end of a path is `running` if somebody executes the run, and `next` if nobody
does. The code is pure; a picture, a tree and a console can be made of the status.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from milepost.executor.flow import END
from milepost.graph.position import GraphPath, StatusBuilder, Visit, kind_in, put_in_order
from milepost.model.info import Wait
from milepost.model.ranges import Ranges, is_live
from milepost.model.record import Record
from milepost.store import ENDED

__all__ = ["RunStatus", "Visit", "each", "standing"]


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The status of a run's nodes, by its records."""

    visits: tuple[Visit, ...]
    """The visits of the run's own graph, in order. Each contains the visits inside it."""
    superseded: tuple[Record, ...]
    """The checkpoints that do not count any more."""
    damaged: tuple[int, ...]
    """The numbers of records that cannot be read."""
    shape: Mapping[str, Any]
    """The shape of the graph at the time when the run began; {} if it is not recorded."""

    @property
    def statuses(self) -> dict[str, str]:
        """The status of each node that the run came to, by whole id: done, running, failed, next or waiting.

        The newest visit of a node counts. Inside a fork, a map or a graph only the nodes count that its newest visit
        came to.
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
        found = (visit for visit in each(self.visits) if visit.status in _OPEN and _is_leaf(visit))
        return tuple(dict.fromkeys(visit.node_id for visit in found))


_OPEN = frozenset({"running", "failed", "next", "waiting"})


def standing(records: Iterable[Record], live: Ranges = (), status: str = "running") -> RunStatus:
    """Make the status of a run of a graph.

    `records` are all records of the run in order, `status` is that of its row.
    """
    reader = StatusBuilder()
    for record in records:
        reader.add(record, is_standing=is_live(record.sequence, live))
    is_over = status in ENDED - {"failed", "blocked"} or (reader.finish or {}).get("status") == "finished"
    settler = _Settler(reader, "running" if status == "running" else "next", is_over=is_over)
    settler.lane(reader.root, END)
    return RunStatus(tuple(reader.root.rows), tuple(reader.superseded), tuple(reader.damaged), reader.root.shape)


def each(visits: Sequence[Visit]) -> Iterator[Visit]:
    """Yield all visits, each before the visits inside it."""
    for visit in visits:
        yield visit
        yield from each(visit.steps)


def _is_leaf(visit: Visit) -> bool:
    return visit.kind != "branch" and not any(inner.status in _OPEN for inner in visit.steps)


def _statuses(visits: Sequence[Visit]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    inside: dict[str, list[str]] = {}

    def tell(visit: Visit) -> None:
        if visit.kind != "branch" and visit.status != "unfinished":
            found[visit.node_id] = visit.status
        if not visit.steps:
            return
        if visit.kind != "branch":
            # The parts of an older visit say nothing about this one.
            for node_id in inside.pop(visit.node_id, ()):
                found.pop(node_id, None)
            inside[visit.node_id] = [inner.node_id for inner in each(visit.steps)]
        for inner in visit.steps:
            tell(inner)

    for visit in visits:
        tell(visit)
    return found


# -- where each way ends ---------------------------------------------------------------------------------------


class _Settler:
    """A pass that sets the status of open visits and adds visits for the next nodes, with the status `open_as`."""

    def __init__(self, reader: StatusBuilder, open_as: str, *, is_over: bool) -> None:
        self.reader = reader
        self.open_as = "unfinished" if is_over else open_as
        self.is_over = is_over

    def lane(self, lane: GraphPath, until: str) -> str:
        """Follow one path up to `until`, and return its status: done if it has come there."""
        for row in lane.rows[:-1]:
            self._older(row)
        if not lane.rows:
            return self._begins(lane, lane.entry)
        last = lane.rows[-1]
        if not last.is_done:
            return self._visit(last)
        if last.next_node is None:
            # Its work is done, and its router has not answered yet.
            last.status = self._of_failure(last) or self.open_as
            return last.status
        if last.fork:
            status = self._branches(last)
            if status != "done":
                return status
        self._older(last)
        return "done" if last.next_node == until else self._begins(lane, last.next_node)

    def _begins(self, lane: GraphPath, node: str) -> str:
        if not node or node == END or self.is_over:
            return self.open_as
        node_id = lane.prefix + node
        kind = str(kind_in(lane.shape, node_id).get("kind", "node"))
        lane.rows.append(Visit(node_id, kind, self.open_as))
        return self.open_as

    def _older(self, row: Visit) -> None:
        """Set the final status of a visit that the run has left, and of the visits inside it."""
        row.wait = None
        for inner in row.steps:
            self._older(inner)
        if row.kind in {"branch", "item"}:
            # A branch has no checkpoint of its own, nor has an item, unless a function does the item.
            row.is_done = row.is_done or bool(row.steps and row.steps[-1].is_done)
        # A fork with branches was done: if it has no record, the record was deleted.
        row.status = "done" if row.is_done or row.kind == "fork" else "unfinished"
        put_in_order(row)

    def _branches(self, fork: Visit) -> str:
        found = []
        for branch in fork.fork:
            row = next(row for row in fork.steps if row.name == branch)
            row.status = self.lane(self.reader.inner[id(row)], str(fork.next_node))
            row.is_done = row.status == "done"
            found.append(row.status)
        return self._together(found)

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
        elif id(visit) in self.reader.inner:
            inside.append(self.lane(self.reader.inner[id(visit)], END))
        visit.status = self._together(inside)
        if visit.status == "done":
            # Its parts are done, and its own function has not returned yet.
            visit.status = self._of_failure(visit) or self.open_as
        if visit.wait is not None:
            visit.status = "unfinished" if self.is_over else "waiting"
            visit.wait = None if self.is_over else visit.wait
        return visit.status

    def _item(self, item: Visit) -> None:
        lane = self.reader.inner.get(id(item))
        if lane is not None:
            item.status = self.lane(lane, END)
            item.is_done = item.status == "done"
        elif not item.is_done:
            item.status = self._of_failure(item) or self.open_as

    def _of_failure(self, visit: Visit) -> str:
        """Return "failed" if the visit has a final failure that counts; else ""."""
        return "failed" if visit.failed_at > self.reader.renewed else ""

    def _together(self, found: Sequence[str]) -> str:
        """Return the status of a visit whose parts have these statuses."""
        order = ("running", "failed", "waiting", "next", "unfinished")
        return next((status for status in order if status in found), "done")
