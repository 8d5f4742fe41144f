"""Events as lines for people."""

from __future__ import annotations

from milepost.cli.text import clean, duration, error_text, short
from milepost.events import (
    AttemptFailed,
    CheckpointFailed,
    Emitted,
    Event,
    NodeCompleted,
    NodeOverdue,
    NodeStarted,
    Progress,
    ResumeInfo,
    RunCompleted,
    RunStarted,
)
from milepost.flow import END

__all__ = ["line_of", "progress_text", "visit_of"]


def line_of(event: Event) -> str | None:
    """One line for an event; None for those that a log of lines does not need."""
    match event:
        case RunStarted():
            return _began(event)
        case NodeCompleted():
            on = "end" if event.next_node == END else event.next_node or "?"
            return f"  done    {visit_of(event)}  {duration(event.duration_ms)}  -> {clean(on)}"
        case AttemptFailed():
            again = "" if event.retry_in is None else f"; again in {duration(event.retry_in * 1000)}"
            return f"  failed  {visit_of(event)} attempt {event.attempt}: {error_text(event.error)}{again}"
        case CheckpointFailed():
            return f"  not saved: {clean(event.node_id)}: {error_text(event.error)}"
        case NodeOverdue():
            return f"  overdue {clean(event.node_id)} goes on after its timeout; its late result will not count"
        case Emitted():
            return (
                f"  {clean(event.node_id)}: {clean(event.name)} {short(event.data if event.data is not None else '')}"
            )
        case RunCompleted():
            if event.result is not None and _is_old(event.result.resumed):
                return None
            return f"run {clean(event.run_id)!r} {event.status} after {duration(event.total_duration_ms)}"
        case _:
            return None


def visit_of(event: NodeStarted | NodeCompleted | AttemptFailed) -> str:
    """`node#visit`, padded so that lines stand in columns."""
    return f"{clean(event.node_id)}#{event.visit}".ljust(20)


def progress_text(event: Progress) -> str:
    """How far a node is."""
    of = f"/{event.total:g}" if event.total is not None else ""
    return f"{event.done:g}{of} {clean(event.message)}".rstrip()


def _began(event: RunStarted) -> str:
    told = f"run {clean(event.run_id)!r} of flow {clean(event.flow)!r}"
    if event.resumed is None:
        return f"{told} starts"
    if _is_old(event.resumed):
        return f"{told} has finished before: nothing runs, its result stands"
    return "\n".join((f"{told} {_goes_on(event.resumed)}", *(f"  note: {clean(d)}" for d in event.resumed.differences)))


def _is_old(info: ResumeInfo | None) -> bool:
    """Whether the run had finished before this command."""
    return info is not None and info.already_completed


def _goes_on(info: ResumeInfo) -> str:
    where = "at its end" if info.next_node == END else f"at {clean(info.next_node)!r}"
    if info.next_node is None:
        where = "by asking the router again"
    after = "from its recorded input" if info.source == "start" else f"after {clean(info.from_node)}#{info.visit}"
    missed = f"; without a checkpoint: {', '.join(map(clean, info.missed))}" if info.missed else ""
    return f"goes on {where}, {after} (record {info.sequence}){missed}"
