"""Events as sentences, for the log."""

from __future__ import annotations

from milepost.model.events import (
    AttemptFailed,
    CheckpointFailed,
    CheckpointSaved,
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
from milepost.model.failure import describe

__all__ = ["sentence", "status_of"]


def sentence(event: Event) -> str:
    """Describe an event in one line."""
    match event:
        case RunStarted():
            how = "starts"
            if event.resumed is not None:
                info = event.resumed
                skipped = f" (skipped: {', '.join(info.skipped)})" if info.skipped else ""
                how = f"goes on at {info.next_node!r} after record {info.sequence}{skipped}"
            told = f"run {event.run_id!r} of flow {event.flow!r} {how}"
        case WorkflowStarted():
            told = f"run {event.run_id!r} of flow {event.workflow_name!r} {_workflow_begins(event)}"
        case NodeStarted():
            told = f"node {event.node_id!r} starts: visit {event.visit}, attempt {event.attempt}"
        case NodeCompleted():
            told = f"node {event.node_id!r} completed in {event.duration_ms:.1f} ms, next {event.next_node!r}"
        case StepStarted():
            told = f"{event.step_type} step {event.step_name!r} starts: visit {event.visit}, attempt {event.attempt}"
        case StepCompleted():
            told = f"{event.step_type} step {event.step_name!r} {event.outcome} in {event.duration_ms:.1f} ms"
        case AttemptFailed():
            then = "no further attempt" if event.retry_in is None else f"again in {event.retry_in:.1f} s"
            told = f"attempt {event.attempt} of node {event.node_id!r} failed: {describe(event.error)}; {then}"
        case CheckpointSaved():
            told = f"checkpoint {event.sequence} of node {event.node_id!r} saved: {event.size} bytes"
        case CheckpointFailed():
            told = f"checkpoint of node {event.node_id!r} not saved ({event.op}): {describe(event.error)}"
        case NodeOverdue():
            told = f"node {event.node_id!r} goes on after its timeout; its result will be discarded"
        case Progress():
            total = f" of {event.total:g}" if event.total is not None else ""
            told = f"node {event.node_id!r}: {event.done:g}{total} {event.message}".rstrip()
        case Emitted():
            told = f"node {event.node_id!r} tells {event.name!r}"
        case RunWaiting():
            what = "a time" if event.wait.signal is None else f"signal {event.wait.signal!r}"
            until = "" if event.wait.wake_at is None else f" until {event.wait.wake_at.isoformat()}"
            # The reason of a refusal quotes the payload, which belongs in the store and not in a log.
            refused = "; the newest answer was refused" if event.reason else ""
            told = f"waits at {event.wait.wait_id!r} for {what}{until}{refused}"
        case RollbackCompleted():
            failed = "" if event.error is None else f", and that failed: {describe(event.error)}"
            told = f"step {event.step_name!r} is rolled back{failed}"
        case RunCompleted() | WorkflowCompleted():
            flow = event.flow if isinstance(event, RunCompleted) else event.workflow_name
            why = f": {describe(event.error)}" if event.error is not None and status_of(event) != "waiting" else ""
            told = f"run {event.run_id!r} of flow {flow!r} is {status_of(event)} after {event.total_duration_ms:.1f} ms{why}"
        case _:
            told = str(event)
    names_run = isinstance(event, (RunStarted, RunCompleted, WorkflowStarted, WorkflowCompleted))
    return told if names_run else f"run {event.run_id!r}: {told}"


def status_of(event: RunCompleted | WorkflowCompleted) -> str:
    """Return the status of the run at the end of a verb."""
    if isinstance(event, RunCompleted):
        return event.status
    if event.result is not None:
        return str(event.result.status)
    return "finished" if event.success else "failed"


def _workflow_begins(event: WorkflowStarted) -> str:
    info = event.resumed
    if info is None:
        return "starts"
    if info.already_completed:
        return "has finished before"
    where = "with its code" if info.next_node is None else f"at step {info.next_node!r}"
    kept = f" (skipped: {len(info.skipped)})" if info.skipped else ""
    return f"goes on {where} after record {info.sequence}{kept}"
