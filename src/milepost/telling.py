"""Events as sentences, for the log."""

from __future__ import annotations

from milepost.events import (
    AttemptFailed,
    CheckpointFailed,
    CheckpointSaved,
    Emitted,
    Event,
    NodeCompleted,
    NodeOverdue,
    NodeStarted,
    Progress,
    RunCompleted,
    RunStarted,
)
from milepost.failures import describe

__all__ = ["sentence"]


def sentence(event: Event) -> str:
    """What an event tells, in one line."""
    match event:
        case RunStarted():
            how = "starts"
            if event.resumed is not None:
                info = event.resumed
                how = f"goes on at {info.next_node!r} after record {info.sequence} (skipped: {', '.join(info.skipped)})"
            told = f"run {event.run_id!r} of flow {event.flow!r} {how}"
        case NodeStarted():
            told = f"node {event.node_id!r} starts: visit {event.visit}, attempt {event.attempt}"
        case NodeCompleted():
            told = f"node {event.node_id!r} completed in {event.duration_ms:.1f} ms, next {event.next_node!r}"
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
        case RunCompleted():
            why = f": {describe(event.error)}" if event.error is not None else ""
            told = f"run {event.run_id!r} of flow {event.flow!r} is {event.status} after {event.total_duration_ms:.1f} ms{why}"
        case _:
            told = str(event)
    return told if isinstance(event, (RunStarted, RunCompleted)) else f"run {event.run_id!r}: {told}"
