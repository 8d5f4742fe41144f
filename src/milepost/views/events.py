"""Events as lines for people and as documents for programs, from a run in progress or from the records of one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from milepost.errors import DeserializeStateError
from milepost.executor.chronicle import Chronicle
from milepost.model.events import AttemptFailed, CheckpointFailed, Emitted, Event, NodeOverdue, Progress
from milepost.model.lifecycle import (
    NodeCompleted,
    NodeStarted,
    RollbackCompleted,
    RunBlocked,
    RunCompleted,
    RunStarted,
    RunWaiting,
    StepCompleted,
    StepStarted,
    WorkflowCompleted,
    WorkflowStarted,
    status_of,
)
from milepost.model.record import CHECKPOINT, END, FAILURE, FINISH, ITEMS, ROLLBACK, Record
from milepost.model.reports import ResumeInfo
from milepost.model.results import SkipMarker, StepResult
from milepost.views.text import clean, duration, error_text, iso, short, wait_text

_WIDTH = 20
"""Columns of the names that begin a line."""


def line_of(event: Event, error: str | None = None) -> str | None:
    """Return one line for an event; None for an event that a log of lines does not need.

    `error` is the text of its error, if that is not the usual one.
    """
    match event:
        case RunStarted() | WorkflowStarted():
            return _began(event)
        case NodeCompleted():
            on = "end" if event.next_node == END else event.next_node or "?"
            # An item of a map, for example, has no next node; only the map has one.
            leads = "" if event.next_node == END and "/" in event.node_id else f"  -> {clean(on)}"
            return f"  done    {visit_of(event)}  {duration(event.duration_ms)}{leads}"
        case StepCompleted():
            # The event of its last attempt, or that of the run, already shows the failure.
            return None if event.outcome == "failed" else _step_line(event, error)
        case AttemptFailed():
            again = "" if event.retry_in is None else f"; again in {duration(event.retry_in * 1000)}"
            return f"  failed  {visit_of(event)} attempt {event.attempt}: {error or error_text(event.error)}{again}"
        case CheckpointFailed():
            return f"  not saved: {clean(event.node_id)}: {error_text(event.error)}"
        case NodeOverdue():
            return f"  overdue {clean(event.node_id)} goes on after its timeout; its late result will not count"
        case Emitted():
            return (
                f"  {clean(event.node_id)}: {clean(event.name)} {short(event.data if event.data is not None else '')}"
            )
        case Progress() if _is_worth_a_line(event):
            return f"  {clean(event.node_id)}: {progress_text(event)}"
        case RunWaiting():
            refused = f"; {short(event.reason, 160)}" if event.reason else ""
            return f"  waits   {_padded(event.wait.wait_id)} for {wait_text(event.wait)}{refused}"
        case RunBlocked():
            return f"  blocked {short(event.reason, 160)}"
        case RollbackCompleted():
            if event.error is None:
                return f"  undone  {clean(event.step_name)}"
            return f"  failed  {_padded(event.step_name)} could not be undone: {error or error_text(event.error)}"
        case RunCompleted() | WorkflowCompleted():
            if event.result is not None and _is_old(event.result.resumed):
                return None
            return f"run {clean(event.run_id)!r} {status_of(event)} after {duration(event.total_duration_ms)}"
        case _:
            return None


def visit_of(event: NodeStarted | NodeCompleted | AttemptFailed) -> str:
    """Return `node#visit`, padded so that the lines form columns."""
    return _padded(f"{event.node_id}#{event.visit}")


def step_of(event: StepStarted) -> str:
    """Return the name of a step that begins, and the number of its attempt unless that is 1."""
    return clean(event.step_name) + (f" attempt {event.attempt}" if event.attempt > 1 else "")


def _padded(name: str) -> str:
    return clean(name).ljust(_WIDTH)


def _step_line(event: StepCompleted, error: str | None) -> str:
    name, took = _padded(event.step_name), duration(event.duration_ms)
    if event.outcome in {"succeeded", "recovered"}:
        return f"  done    {name}  {took}" + ("  by its on_error" if event.outcome == "recovered" else "")
    result: StepResult = event.result
    why = error or short(f"{result.error_type}: {result.error}", 160) if result.error is not None else ""
    output: Any = result.output
    reason = output.reason if isinstance(output, SkipMarker) else ""
    return f"  skipped {name}  {clean(reason)}" + (f": {why}" if why else "")


def progress_text(event: Progress) -> str:
    """Return the progress of a node in a few words."""
    of = f"/{event.total:g}" if event.total is not None else ""
    return f"{event.done:g}{of} {clean(event.message)}".rstrip()


def _is_worth_a_line(event: Progress) -> bool:
    """Return whether a progress is worth a line: another tenth is done, or everything."""
    done, total = event.done, event.total or 0
    return done == total > 0 or (total >= 10 and done * 10 // total > (done - 1) * 10 // total)


def _began(event: RunStarted | WorkflowStarted) -> str:
    flow = event.flow if isinstance(event, RunStarted) else event.workflow_name
    run = f"run {clean(event.run_id)!r} of flow {clean(flow)!r}"
    if event.resumed is None:
        return f"{run} starts"
    if _is_old(event.resumed):
        return f"{run} has finished before: nothing runs, its result stands"
    onwards = _goes_on(event.resumed, is_workflow=isinstance(event, WorkflowStarted))
    return "\n".join((f"{run} {onwards}", *(f"  note: {clean(d)}" for d in event.resumed.differences)))


def _is_old(info: ResumeInfo | None) -> bool:
    """Return whether the run had already finished when this command began."""
    return info is not None and info.already_completed


def _goes_on(info: ResumeInfo, *, is_workflow: bool) -> str:
    if info.source == "latest" and info.from_node is None:
        return f"goes on after record {info.sequence}"  # a journal says no more
    where = "at its end" if info.next_node == END else f"at {clean(info.next_node)!r}"
    if info.next_node is None:
        where = "with its code, to its end" if is_workflow else "by asking the router again"
    after = "from its recorded input" if info.source == "start" else f"after {clean(info.from_node)}#{info.visit}"
    missed = f"; without a checkpoint: {', '.join(map(clean, info.missed))}" if info.missed else ""
    return f"goes on {where}, {after} (record {info.sequence}){missed}"


# -- for programs ----------------------------------------------------------------------------------------


def event_document(event: Event, codec: Any) -> dict[str, Any]:
    """Return an event as JSON: states as they are recorded, times as ISO 8601, without the result."""
    document = event.to_dict()
    document["timestamp"] = iso(event.timestamp)
    document.pop("result", None)
    if isinstance(event, RunStarted):
        document["input"] = recorded(codec, event.input)
    elif isinstance(event, WorkflowStarted):
        # Of a run that had already finished only the end was read.
        has_inputs = event.inputs and not _is_old(event.resumed)
        document["inputs"] = recorded(codec, event.inputs) if has_inputs else {}
    elif isinstance(event, StepCompleted) and event.outcome in {"failed", "skipped"}:
        result = event.result
        document["error"] = None if result.error is None else f"{result.error_type}: {result.error}"
        document["reason"] = result.output.reason if isinstance(result.output, SkipMarker) else None
    elif isinstance(event, WorkflowCompleted):
        document["status"] = status_of(event)
    return document


def recorded(codec: Any, state: Any) -> Any:
    """Return a state as the JSON with which it is recorded."""
    return json.loads(codec.encode(state))


def _events_of(chronicle: Chronicle, record: Record) -> Iterator[Event]:
    # A record whose state cannot be read (if a key is missing, for example) has no event, and is not shown.
    with suppress(DeserializeStateError):
        yield from chronicle.tell(record)


def _error_of(record: Record) -> str | None:
    """Return the error in a record in one line, as the process in which it happened shows it."""
    if record.kind == ROLLBACK:
        return record.fields().get("message")
    if record.kind not in {FAILURE, FINISH} or "error_type" not in record.fields():
        return None
    fields = record.fields()
    return short(f"{fields['error_type']}: {fields.get('message', '')}", 160)


class MapProgress:
    """A counter of the items of maps that are done. It gets the records of a run in order, since no record has the count."""

    def __init__(self) -> None:
        self._maps: dict[str, tuple[int, set[str]]] = {}

    def tell(self, record: Record, event: Event | None) -> Progress | None:
        """Return the progress of a map if the record is the result of one of its items."""
        map_id, _, item = record.node_id.rpartition("/")
        if record.kind == ITEMS and event is None:
            with contextlib.suppress(DeserializeStateError):
                if (count := record.fields().get("count")) is not None:
                    self._maps[record.node_id] = int(count), set()
        elif record.kind == CHECKPOINT and map_id in self._maps and event is not None:
            total, done = self._maps[map_id]
            done.add(item)
            return Progress(run_id=event.run_id, timestamp=event.timestamp, node_id=map_id, done=len(done), total=total)
        return None
