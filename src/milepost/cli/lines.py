"""Events as lines for people."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from milepost.cli.text import clean, duration, error_text, iso, short, utc
from milepost.executor.flow import END
from milepost.model.events import (
    AttemptFailed,
    CheckpointFailed,
    Emitted,
    Event,
    NodeCompleted,
    NodeOverdue,
    NodeStarted,
    Progress,
    RollbackCompleted,
    RunCompleted,
    RunStarted,
    RunWaiting,
    StepCompleted,
    StepStarted,
    WorkflowCompleted,
    WorkflowStarted,
)
from milepost.model.info import Wait
from milepost.model.messages import status_of
from milepost.model.reports import ResumeInfo
from milepost.model.results import SkipMarker, StepResult

__all__ = ["line_of", "progress_text", "signal_command", "step_of", "visit_of", "wait_document", "wait_text"]

_WIDTH = 20
"""Columns of the names that begin a line."""


def line_of(event: Event, error: str | None = None) -> str | None:
    """One line for an event; None for those that a log of lines does not need. `error`: what to say of its error."""
    match event:
        case RunStarted() | WorkflowStarted():
            return _began(event)
        case NodeCompleted():
            on = "end" if event.next_node == END else event.next_node or "?"
            # What is inside a node, such as an item of a map, leads nowhere: the node does.
            leads = "" if event.next_node == END and "/" in event.node_id else f"  -> {clean(on)}"
            return f"  done    {visit_of(event)}  {duration(event.duration_ms)}{leads}"
        case StepCompleted():
            # Its last attempt has told of a failure; one without is that of the run.
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
        case RunWaiting():
            refused = f"; {short(event.reason, 160)}" if event.reason else ""
            return f"  waits   {_padded(event.wait.wait_id)} for {wait_text(event.wait)}{refused}"
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
    """`node#visit`, padded so that lines stand in columns."""
    return _padded(f"{event.node_id}#{event.visit}")


def step_of(event: StepStarted) -> str:
    """The step that an attempt is one of, and which attempt where it is not the first."""
    return clean(event.step_name) + (f" attempt {event.attempt}" if event.attempt > 1 else "")


def wait_text(wait: Wait) -> str:
    """What a run waits for: a signal or a time, and what whoever sends it is to know."""
    until = "" if wait.wake_at is None else f" until {utc(wait.wake_at)}"
    if wait.signal is None:
        return f"its time{until}"
    asked = wait.prompt if isinstance(wait.prompt, str) else json.dumps(wait.prompt, ensure_ascii=False, default=str)
    return f"signal {clean(wait.signal)!r}{until}" + (f": {short(asked, 200)}" if wait.prompt else "")


def signal_command(run_id: str, wait: Wait, waits: Sequence[Wait], store: Sequence[str] = ()) -> str:
    """The command that sends what a run waits for, as it can be typed; `waits` are all that it waits for."""
    is_one_of_many = sum(other.signal == wait.signal for other in waits) > 1
    to = ["--to", wait.wait_id] if is_one_of_many else []
    words = shlex.join(["signal", run_id, str(wait.signal)]), "[JSON]", shlex.join([*to, *store])
    return clean(f"milepost {' '.join(words)}".rstrip())


def wait_document(wait: Wait) -> dict[str, Any]:
    """What a run waits for as JSON."""
    return {"wait_id": wait.wait_id, "signal": wait.signal, "prompt": wait.prompt, "wake_at": iso(wait.wake_at)}


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
    """How far a node is."""
    of = f"/{event.total:g}" if event.total is not None else ""
    return f"{event.done:g}{of} {clean(event.message)}".rstrip()


def _began(event: RunStarted | WorkflowStarted) -> str:
    flow = event.flow if isinstance(event, RunStarted) else event.workflow_name
    told = f"run {clean(event.run_id)!r} of flow {clean(flow)!r}"
    if event.resumed is None:
        return f"{told} starts"
    if _is_old(event.resumed):
        return f"{told} has finished before: nothing runs, its result stands"
    onwards = _goes_on(event.resumed, is_workflow=isinstance(event, WorkflowStarted))
    return "\n".join((f"{told} {onwards}", *(f"  note: {clean(d)}" for d in event.resumed.differences)))


def _is_old(info: ResumeInfo | None) -> bool:
    """Whether the run had finished before this command."""
    return info is not None and info.already_completed


def _goes_on(info: ResumeInfo, *, is_workflow: bool) -> str:
    if info.source == "latest" and info.from_node is None:
        return f"goes on after record {info.sequence}"  # all that a journal tells of it
    where = "at its end" if info.next_node == END else f"at {clean(info.next_node)!r}"
    if info.next_node is None:
        where = "with its code, to its end" if is_workflow else "by asking the router again"
    after = "from its recorded input" if info.source == "start" else f"after {clean(info.from_node)}#{info.visit}"
    missed = f"; without a checkpoint: {', '.join(map(clean, info.missed))}" if info.missed else ""
    return f"goes on {where}, {after} (record {info.sequence}){missed}"
