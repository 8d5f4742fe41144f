"""The status of one run, and its reason: as facts and a table for people, and as a document for programs."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from milepost.errors import DeserializeStateError
from milepost.executor.flow import END
from milepost.executor.history import position_after
from milepost.graph.status import RunStatus, Visit, standing
from milepost.model.info import RunFailure, RunInfo
from milepost.model.record import (
    OWNER,
    START,
    Record,
    parse_time,
)
from milepost.store import RunSnapshot, Store
from milepost.views.journal import is_workflow, records_of
from milepost.views.text import (
    ago,
    duration,
    elapsed,
    in_options,
    iso,
    json_text,
    plural,
    short,
    signal_command,
    size,
    wait_document,
)
from milepost.views.tree import Tree, TreeStep, following, graph_rows, rows_of, standing_document, tree_of


def view_run(
    latest: RunSnapshot, records: Iterable[Record], place: str, is_of_steps: bool, error: RunFailure | None = None
) -> RunView:
    """Make the view of a run from its row and its records; `place` is that of its store, `error` what it failed with."""
    row = latest.row
    if is_of_steps:
        return RunView(latest, place, tree_of(records, latest), error)
    return RunView(latest, place, standing(records, row.live, row.info.status), error)


LONG = 1000
"""The number of records from which on a list of runs does not read all of them."""


def next_places(store: Store, info: RunInfo) -> tuple[str | None, ...]:
    """Return where a run goes on, as `RunView.places` has it; of a long run only the one place that its newest records name."""
    if info.status in {"finished", "waiting"}:
        return _places(info, (info.next_node,))
    latest = store.latest(info.run_id)
    if latest.newest >= LONG:
        return (next_node(latest),)
    return view_run(latest, records_of(store, info.run_id), store.place, is_workflow(store, info.run_id)).places


def _places(info: RunInfo, following: tuple[str | None, ...]) -> tuple[str | None, ...]:
    """Return where a run waits, if it does, else where it goes on."""
    if info.status == "waiting" and info.waiting_for:
        return tuple(wait.wait_id.rpartition("#")[0] for wait in info.waiting_for)
    return following


def shown_places(places: Iterable[str | None]) -> str:
    """Return the names of the places where a run goes on, for people."""
    return short(", ".join(map(shown_next, places)), 160)


@dataclass(frozen=True, slots=True)
class RunView:
    """One look at a run: its row, and the tree of its steps or visits."""

    latest: RunSnapshot
    place: str
    found: Tree | RunStatus
    error: RunFailure | None = None

    @property
    def following(self) -> tuple[str | None, ...]:
        """The nodes or steps where the run goes on, one for each open branch."""
        found = self.found
        return (found.next_step,) if isinstance(found, Tree) else following(found, next_node(self.latest))

    @property
    def places(self) -> tuple[str | None, ...]:
        """The nodes or steps where the run waits, if it does, else those where it goes on."""
        return _places(self.latest.row.info, self.following)

    def failure(self, onwards: str) -> list[tuple[str, object]]:
        """Return what failed, where in the user's code, and what to do: `onwards` is the command that goes on.

        Nothing for a run that has not failed.
        """
        info, error = self.latest.row.info, self.error
        if info.status != "failed":
            return []
        if error is None:
            return [("failed", info.reason or "the run"), ("do", f"mend the cause, then: {onwards}")]
        where = f"node {error.node_id!r}" if isinstance(self.found, RunStatus) else f"step {error.node_id!r}"
        what = f"{error.error_type}: {error.message}".partition("\n")[0]
        return [
            ("failed", f"{where if error.node_id else 'the code of the workflow'} with {what}"),
            ("in", error_place(error.traceback)),
            ("do", f"mend the cause, then: {onwards}"),
        ]

    def facts(self) -> list[tuple[str, object]]:
        """Return names and values that describe the run as a whole; some are empty."""
        info, found = self.latest.row.info, self.found
        newest = "result" if isinstance(found, Tree) else "state"
        facts: list[tuple[str, object]] = [
            ("run", info.run_id),
            ("flow", info.flow),
            ("status", info.status + (" (degraded)" if info.degraded else "")),
            ("why", why_it_stands(info, *self.following)),
            ("next", shown_places(self.places)),
            ("created", ago(info.created_at)),
            ("updated", ago(info.updated_at)),
            ("records", str(info.sequence + 1) + (f", the newest {newest} has {size(info.size)}" if info.size else "")),
            ("newest", f"{elapsed(self._newest())} ago" if info.status == "running" else ""),
            ("crashes", info.crash_count or None),
            ("missed", ", ".join(info.missed)),
            ("tags", " ".join(f"{key}={value}" for key, value in info.tags.items())),
        ]
        if isinstance(found, Tree):
            inputs = found.inputs if isinstance(found.inputs, dict) else {}
            told = " ".join(f"{name}={json_text(value)}" for name, value in inputs.items())
            facts.append(("inputs", short(told, 160)))
            if info.status == "finished":
                facts.append(("output", short(json_text(found.output), 160)))
        old = [f"{record.node_id}#{record.visit}" for record in found.superseded]
        if old:
            what = "result" if isinstance(found, Tree) else "visit"
            facts.append(("superseded", f"{plural(len(old), what)}: {short(', '.join(old), 100)}"))
        if found.damaged:
            facts.append(("damaged", f"{plural(len(found.damaged), 'record')}: see milepost verify {info.run_id}"))
        return [*facts, ("store", self.place)]

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[object]], Sequence[str]]:
        """Return the tree as a table: its columns, its rows, and the status of each row ("" for a row of none)."""
        found = self.found
        rows: list[tuple[TreeStep | Visit | None, str, str]]
        rows = (
            [*rows_of(found.steps)]
            if isinstance(found, Tree)
            else [*graph_rows(found.visits, since=self._newest(OWNER))]
        )
        has_marks = any(isinstance(step, TreeStep) and step.is_marked for step, _, _ in rows)
        first = "step" if isinstance(found, Tree) else "node"
        columns = [first, "kind", "status", "attempts", "took", *(["point"] if has_marks else []), "told"]
        statuses = ["" if step is None else step.status for step, _, _ in rows]
        return columns, [_row(*row, has_marks=has_marks) for row in rows], statuses

    def _newest(self, *kinds: str) -> datetime:
        """Return the time of the newest record, of one of the `kinds` if any are given; that of the run if there is none."""
        for record in (*reversed(self.latest.tail), *filter(None, (self.latest.point,))):
            with contextlib.suppress(DeserializeStateError, KeyError, ValueError):
                if not kinds or record.kind in kinds:
                    return parse_time(str(record.fields()["timestamp"]))
        return self.latest.row.info.created_at

    def document(self) -> dict[str, Any]:
        """Return the view as JSON, without the run's row."""
        first, *_ = self.following
        found = self.found
        common = {
            "why": why_it_stands(self.latest.row.info, *self.following),
            "next_node": first or None,
            "cancel_requested": self.latest.row.cancel,
        }
        return common | (_tree_document(found) if isinstance(found, Tree) else standing_document(found))


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


def _row(step: TreeStep | Visit | None, name: str, told: str, *, has_marks: bool) -> tuple[object, ...]:
    if step is None:
        return (name, *[""] * (5 + has_marks))
    kind = step.step_type if isinstance(step, TreeStep) else "" if step.kind == "node" else step.kind
    took = "" if step.duration_ms is None else duration(step.duration_ms)
    is_marked = isinstance(step, TreeStep) and step.is_marked
    mark = [("marked" if is_marked else "")] if has_marks else []
    return (name, kind, step.status, step.attempts or "", took, *mark, told)


_FRAME = re.compile(r'^[ |]*File "(.+?)", line (\d+), in (.+)$', re.MULTILINE)
_FOREIGN = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python3|^<")


def error_place(traceback: str) -> str:
    """Return file, line and function of the innermost frame of the user's own code, of any code if none is; "" for none."""
    frames = _FRAME.findall(traceback.rpartition("\n\n")[2]) or _FRAME.findall(traceback)
    own = [frame for frame in frames if not _FOREIGN.search(frame[0])] or frames
    return "{}:{}, in {}".format(*own[-1]) if own else ""


_PLACES = 4
"""The number of places that are named beside the first."""


def info_document(info: RunInfo) -> dict[str, Any]:
    """Return the row of a run as JSON."""
    return {
        "run_id": info.run_id,
        "flow": info.flow,
        "status": info.status,
        "reason": info.reason,
        "degraded": info.degraded,
        "missed": list(info.missed),
        "created_at": iso(info.created_at),
        "updated_at": iso(info.updated_at),
        "sequence": info.sequence,
        "next_node": info.next_node,
        "size": info.size,
        "owner": info.owner,
        "lease_until": iso(info.lease_until),
        "wake_at": iso(info.wake_at),
        "waiting_for": [wait_document(wait) for wait in info.waiting_for],
        "crash_count": info.crash_count,
        "tags": dict(info.tags),
        **({} if info.error is None else {"error": dataclasses.asdict(info.error)}),
    }


def why_it_stands(info: RunInfo, following: str | None, *others: str | None) -> str:
    """Say in one sentence why the run does not move, or who moves it, and what to do.

    `following` is the node where it goes on; None: its router has not answered yet, "": not known. `others` are those
    of other branches.
    """
    told = in_options(info.reason) or f"it is {info.status}"
    places = ", ".join(map(repr, (following, *others[:_PLACES])))
    more = f" and {len(others) - _PLACES} more" if len(others) > _PLACES else ""
    where = {None: " with its router", END: " at its end", "": ""}.get(following, f" at {places}{more}")
    resume = f"milepost resume {info.run_id} [TARGET]"
    match info.status:
        case "finished":
            return "it has finished"
        case "running":
            return told
        case "dead":
            return f"{told}; {resume} goes on{where}"
        case "ready":
            return f"{told}; milepost worker or {resume} goes on{where}"
        case "waiting":
            waits = info.waiting_for
            sends = "; ".join(
                f"{signal_command(info.run_id, wait, waits)} sends it" for wait in waits if wait.signal is not None
            )
            return f"{told}; {sends}" if sends else told
        case "failed":
            failed = f"it failed: {told}" if info.reason else "it failed"
            again = f"{resume}, or milepost retry for fresh attempts, goes on{where}"
            return failed if "resume" in info.reason else f"{failed}; {again}"
        case "interrupted":
            return f"it was interrupted{f' ({told})' if info.reason else ''}: {resume} goes on{where}"
        case _:
            stands = f"it is {info.status}{f' ({told})' if info.reason else ''}"
            return f"{stands}: {resume} --reopen goes on{where}"


def shown_next(node_id: str | None) -> str:
    """Return the name of the node where a run goes on, for people."""
    return "(end)" if node_id == END else node_id or ""


def next_node(latest: RunSnapshot) -> str | None:
    """Return the node where the run goes on; None if its router has not answered yet, or nothing is known."""
    if latest.point is None:
        return None
    try:
        told = latest.point.fields().get("entry" if latest.point.kind == START else "next_node")
        position = position_after(latest.point, told, latest.tail)
    except DeserializeStateError:
        return latest.row.info.next_node
    if latest.point.is_foreign and position.turn is None:
        return latest.row.info.next_node
    return None if position.is_rerouted else position.next_node
