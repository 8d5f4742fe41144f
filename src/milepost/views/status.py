"""The status of one run and the reason for it: as facts and a table for people, and as a document for programs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from milepost.errors import DeserializeStateError
from milepost.executor.history_reader import position_after
from milepost.graph.status import RunStatus, Visit, read_status
from milepost.model.beginning import completed_by, is_incomplete, is_unread
from milepost.model.info import RunFailure, RunInfo
from milepost.model.record import (
    CHECKPOINT,
    FINISH,
    OWNER,
    REPLY,
    START,
    Record,
    parse_time,
)
from milepost.model.tracebacks import error_place
from milepost.store import RunSnapshot, Store
from milepost.views.journal import actor_of, believed, is_workflow, records_of
from milepost.views.rows import awaited_places, places_at_rest, shown_places, why_it_stands
from milepost.views.text import (
    ago,
    attempt_of,
    duration,
    elapsed,
    json_text,
    plural,
    short,
    size,
)
from milepost.views.tree import Tree, TreeStep, following, graph_rows, rows_of, status_document, tree_of


def view_run(
    latest: RunSnapshot, records: Iterable[Record], place: str, is_of_steps: bool, error: RunFailure | None = None
) -> RunView:
    """Make the view of a run from its row and its records. `place` names its store; `error` is the error that ended it."""
    row = latest.row
    actions: list[Action] = []
    records = _noting(records, actions)
    content = tree_of(records, latest) if is_of_steps else read_status(records, row.live, row.info.status)
    return RunView(latest, place, content, error, actions)


def recent_records(store: Store, run_id: str, latest: RunSnapshot) -> Iterator[Record]:
    """Yield the records that show where a run stands: all of a short run.

    Of a long one these are its start, the newest visits of up to 150 nodes, and its newest records, in order.
    """
    if latest.newest < LONG:
        yield from records_of(store, run_id, latest.newest)
        return
    newest = store.read(run_id, before=latest.newest + 1, newest=True, limit=LONG)[::-1]
    first = newest[0].sequence if newest else 0
    known = {record.node_id for record in newest if record.kind == CHECKPOINT}
    older = [node for node in store.latest(run_id, with_nodes=True).nodes if node not in known][:_MOST_NODES]
    yield from store.read(run_id, before=1)
    visits = [
        record
        for node in older
        for record in store.read(run_id, after=0, before=first, node_id=node, kinds=(CHECKPOINT,), newest=True, limit=1)
    ]
    yield from sorted(visits, key=lambda record: record.sequence)
    yield from (believed(store, run_id, record) for record in newest)


class Action(NamedTuple):
    """An act upon a run, and the one who did it, as the caller said."""

    sequence: int
    action: str
    by: str


_ACTIONS = {START: "fork", OWNER: "requeue", REPLY: "signal", FINISH: "cancel"}


def _noting(records: Iterable[Record], actions: list[Action]) -> Iterator[Record]:
    """Pass records on and note who caused them."""
    for record in records:
        if record.kind in _ACTIONS:
            with contextlib.suppress(DeserializeStateError):
                by = actor_of(record.fields())
                if by is not None:
                    actions.append(Action(record.sequence, _ACTIONS[record.kind], by))
        yield record


LONG = 1000
"""The number of records from which on not all records of a run are read to show where it stands."""
_MOST_NODES = 150


def next_places(store: Store, info: RunInfo) -> tuple[str | None, ...]:
    """Return where a run goes on, as `RunView.places` does; for a long run only the one place that its newest records name."""
    if (places := places_at_rest(info)) is not None:
        return places
    latest, is_of_steps = store.latest(info.run_id), is_workflow(store, info.run_id)
    if latest.newest >= LONG:
        return ("" if is_of_steps else next_node(latest),)
    return view_run(latest, records_of(store, info.run_id), store.place, is_of_steps).places


@dataclass(frozen=True, slots=True)
class RunView:
    """A view of a run: its row, and the tree of its steps or visits."""

    latest: RunSnapshot
    place: str
    content: Tree | RunStatus
    error: RunFailure | None = None
    actions: Sequence[Action] = ()

    @property
    def following(self) -> tuple[str | None, ...]:
        """The nodes or steps where the run goes on: one, or one for each open branch."""
        content = self.content
        return (content.next_step,) if isinstance(content, Tree) else following(content, next_node(self.latest))

    @property
    def places(self) -> tuple[str | None, ...]:
        """The nodes or steps where the run waits or, if it does not wait, where it goes on."""
        return awaited_places(self.latest.row.info, self.following)

    @property
    def why(self) -> str:
        """One sentence that says why the run stands still, or who executes it, and what to do."""
        info = self.latest.row.info
        told = why_it_stands(info, *self.following)
        is_new = info.status == "ready" and info.wake_at is None and self.latest.newest == 0
        if is_new and is_unread(self.latest.point, self.latest.tail):
            return f"{told}; it was started by name, and no worker knows flow {info.flow!r} so far"
        return told

    def failure(self, onwards: str) -> list[tuple[str, object]]:
        """Return what failed, where in the user's code, and what to do; [] if no failure ended the run and no bug holds it.

        `onwards` is the command that goes on with the run.
        """
        info, error = self.latest.row.info, self.error
        if info.status != "failed" and info.blocked_by != "bug":
            return []
        what_happened = "failed" if info.status == "failed" else "held"
        if error is None:
            return [(what_happened, info.reason or "the run"), ("do", f"mend the cause, then: {onwards}")]
        where = f"node {error.node_id!r}" if isinstance(self.content, RunStatus) else f"step {error.node_id!r}"
        what = f"{error.error_type}: {error.message}".partition("\n")[0]
        return [
            (what_happened, f"{where if error.node_id else 'the code of the workflow'} with {what}"),
            ("in", error_place(error.traceback)),
            ("do", f"mend the cause, then: {onwards}"),
        ]

    def facts(self) -> list[tuple[str, object]]:
        """Return names and values that describe the run as a whole. Some values are empty."""
        info, content = self.latest.row.info, self.content
        newest = "result" if isinstance(content, Tree) else "state"
        facts: list[tuple[str, object]] = [
            ("run", info.run_id),
            ("flow", info.flow),
            ("status", info.status + (" (degraded)" if info.degraded else "")),
            ("why", self.why),
            ("next", shown_places(self.places)),
            ("by", short(", ".join(f"{action.by} ({action.action})" for action in reversed(self.actions)), 160)),
            ("created", ago(info.created_at)),
            ("updated", ago(info.updated_at)),
            ("records", str(info.sequence + 1) + (f", the newest {newest} has {size(info.size)}" if info.size else "")),
            ("newest", f"{elapsed(self._newest())} ago" if info.status == "running" else ""),
            ("crashes", info.crash_count or None),
            ("missed", ", ".join(info.missed)),
            ("tags", " ".join(f"{key}={value}" for key, value in info.tags.items())),
        ]
        if isinstance(content, Tree):
            inputs = content.inputs if isinstance(content.inputs, dict) else {}
            values = " ".join(f"{name}={json_text(value)}" for name, value in inputs.items())
            facts.append(("inputs", short(values, 160)))
            if info.status == "finished":
                facts.append(("output", short(json_text(content.output), 160)))
        old = [f"{record.node_id}#{record.visit}" for record in content.superseded]
        if old:
            what = "result" if isinstance(content, Tree) else "visit"
            facts.append(("superseded", f"{plural(len(old), what)}: {short(', '.join(old), 100)}"))
        if content.damaged:
            facts.append(("damaged", f"{plural(len(content.damaged), 'record')}: see milepost verify {info.run_id}"))
        return [*facts, ("store", self.place)]

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[object]], Sequence[str]]:
        """Return the tree as a table: its columns, its rows, and the status of each row ("" if it has none)."""
        content = self.content
        rows: list[tuple[TreeStep | Visit | None, str, str]]
        rows = (
            [*rows_of(content.steps)]
            if isinstance(content, Tree)
            else [*graph_rows(content.visits, since=self._newest(OWNER))]
        )
        has_marks = any(isinstance(step, TreeStep) and step.is_marked for step, _, _ in rows)
        first = "step" if isinstance(content, Tree) else "node"
        columns = [first, "kind", "status", "attempts", "took", *(["point"] if has_marks else []), "detail"]
        statuses = ["" if step is None else step.status for step, _, _ in rows]
        return columns, [_row(*row, has_marks=has_marks) for row in rows], statuses

    def _newest(self, *kinds: str) -> datetime:
        """Return the time of the newest record (of these kinds, if any are given), else that of the run's creation."""
        for record in (*reversed(self.latest.tail), *filter(None, (self.latest.point,))):
            with contextlib.suppress(DeserializeStateError, KeyError, ValueError):
                if not kinds or record.kind in kinds:
                    return parse_time(str(record.fields()["timestamp"]))
        return self.latest.row.info.created_at

    def document(self) -> dict[str, Any]:
        """Return the view as JSON, without the run's row."""
        first, *_ = self.following
        content = self.content
        common: dict[str, Any] = {
            "why": self.why,
            "next_node": first or None,
            "cancel_requested": self.latest.row.cancel,
        }
        if self.actions:
            common["by"] = [action._asdict() for action in self.actions]
        return common | (_tree_document(content) if isinstance(content, Tree) else status_document(content))


def _tree_document(tree: Tree) -> dict[str, Any]:
    superseded = [
        {"step_id": record.node_id, "visit": record.visit, "sequence": record.sequence} for record in tree.superseded
    ]
    return {
        "steps": [step.to_dict() for step in tree.steps],
        "inputs": tree.inputs,
        "output": tree.output,
        "superseded": superseded,
        "damaged": list(tree.damaged),
    }


def _row(step: TreeStep | Visit | None, name: str, remark: str, *, has_marks: bool) -> tuple[object, ...]:
    if step is None:
        return (name, *[""] * (5 + has_marks))
    kind = step.step_type if isinstance(step, TreeStep) else "" if step.kind == "node" else step.kind
    took = "" if step.duration_ms is None else duration(step.duration_ms)
    is_marked = isinstance(step, TreeStep) and step.is_marked
    mark = [("marked" if is_marked else "")] if has_marks else []
    attempts = attempt_of(step.attempts, step.max_attempts) if step.attempts else ""
    return (name, kind, step.status, attempts, took, *mark, remark)


def next_node(latest: RunSnapshot) -> str | None:
    """Return the node where the run goes on; None if its router has not answered yet, or if the node is unknown.

    "" for a run that was started by name, and that no worker has taken yet.
    """
    if latest.point is None:
        return None
    try:
        if latest.point.kind == START:
            fields = completed_by(latest.point, latest.tail).fields()
            recorded = "" if is_incomplete(fields) else fields.get("entry")
        else:
            recorded = latest.point.fields().get("next_node")
        position = position_after(latest.point, recorded, latest.tail)
    except DeserializeStateError:
        return latest.row.info.next_node
    if latest.point.is_foreign and position.turn is None:
        return latest.row.info.next_node
    return None if position.is_rerouted else position.next_node
