"""Where a run of a graph stands, node by node, as its records tell it: nothing of the user's code is needed.

Each way through the graph is followed to where its visits end, which is where the run goes on. What a node does leaves no
record before it ends, so a node where a way ends is `running` if somebody executes the run, and `next` if nobody does. Pure; a
picture, a tree and a console can all be made of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from milepost.executor.checks import is_live
from milepost.executor.flow import END
from milepost.graph.position import GraphPath, StatusBuilder, Visit, kind_in, put_in_order
from milepost.model.info import Wait
from milepost.model.record import Record
from milepost.store import ENDED, Ranges

__all__ = ["RunStatus", "Visit", "each", "standing"]


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What the records of a run tell of its nodes."""

    visits: tuple[Visit, ...]
    """Those of the run's own graph, in order; what each is made of is inside it."""
    superseded: tuple[Record, ...]
    """The checkpoints that do not count any more."""
    damaged: tuple[int, ...]
    """The numbers of records that cannot be read."""
    shape: Mapping[str, Any]
    """The shape that the graph had when the run began; {} where that is not recorded."""

    @property
    def statuses(self) -> dict[str, str]:
        """Done, running, failed, next or waiting for every node that the run came to, by whole id: as of its newest visit.

        Of what is inside a fork, a map or a graph, only what its newest visit came to.
        """
        return dict(_statuses(self.visits))

    @property
    def maps(self) -> dict[str, tuple[int, int, int]]:
        """Of the newest visit of each map: how many items are done, how many failed, and how many there are."""
        return {visit.node_id: visit.progress for visit in each(self.visits) if visit.is_counted}

    @property
    def waits(self) -> dict[str, Wait]:
        """What the run waits for, by the whole id of the node."""
        return {visit.node_id: visit.wait for visit in each(self.visits) if visit.wait is not None}

    @property
    def next_nodes(self) -> tuple[str, ...]:
        """The whole ids of the nodes where the run goes on: one, or one in each branch that is open."""
        found = (visit for visit in each(self.visits) if visit.status in _OPEN and _is_leaf(visit))
        return tuple(dict.fromkeys(visit.node_id for visit in found))


_OPEN = frozenset({"running", "failed", "next", "waiting"})


def standing(records: Iterable[Record], live: Ranges = (), status: str = "running") -> RunStatus:
    """Tell where a run of a graph stands. `records` are all of the run, in order, `status` is that of the run."""
    reader = StatusBuilder()
    for record in records:
        reader.add(record, is_standing=is_live(record.sequence, live))
    is_over = status in ENDED - {"failed", "blocked"} or (reader.finish or {}).get("status") == "finished"
    settler = _Settler(reader, "running" if status == "running" else "next", is_over=is_over)
    settler.lane(reader.root, END)
    return RunStatus(tuple(reader.root.rows), tuple(reader.superseded), tuple(reader.damaged), reader.root.shape)


def each(visits: Sequence[Visit]) -> Iterator[Visit]:
    """All visits, each before what it is made of."""
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
            # What an older visit was made of says nothing of this one.
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
    """Gives what is open its status, and adds the nodes that are next: `open_as` is what those are."""

    def __init__(self, reader: StatusBuilder, open_as: str, *, is_over: bool) -> None:
        self.reader = reader
        self.open_as = "unfinished" if is_over else open_as
        self.is_over = is_over

    def lane(self, lane: GraphPath, until: str) -> str:
        """Follow one way up to `until`: how it stands there, done where it has come to it."""
        for row in lane.rows[:-1]:
            self._older(row)
        if not lane.rows:
            return self._begins(lane, lane.entry)
        last = lane.rows[-1]
        if not last.is_done:
            return self._visit(last)
        if last.next_node is None:
            # Its work is done, and its router has yet to say where the run goes on.
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
        """What is inside something that the run has left."""
        row.wait = None
        for inner in row.steps:
            self._older(inner)
        if row.kind in {"branch", "item"}:
            # Neither has a record of its own, unless it is an item of a function.
            row.is_done = row.is_done or bool(row.steps and row.steps[-1].is_done)
        # The record of a fork that has branches and is not there was deleted.
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
        """The status of a visit that has not ended."""
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
            # What it is made of is done, and its own function has yet to say what comes of that.
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
        """Failed, where a failure for good stands; else nothing."""
        return "failed" if visit.failed_at > self.reader.renewed else ""

    def _together(self, found: Sequence[str]) -> str:
        """The status of what is made of parts of these statuses."""
        order = ("running", "failed", "waiting", "next", "unfinished")
        return next((status for status in order if status in found), "done")
