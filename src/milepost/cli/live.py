"""Shows a run while it runs: JSON lines for programs, plain lines, or lines and a spinner in a terminal.

Each is a hook. What cannot be printed (the reader has gone) never stops the run; the command notices at its end.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TextIO, cast

from milepost.cli.text import clean, duration, error_text, iso, short, to_json
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

__all__ = ["Watcher", "event_document", "recorded", "watching"]


class Watcher(Protocol):
    """A hook that shows events."""

    def __call__(self, event: Event) -> None:
        """Show one event."""


@contextlib.contextmanager
def watching(codec: Any, *, is_json: bool) -> Iterator[Watcher]:
    """Give the hook that suits where the output goes. Under JSON what nodes print goes to the standard error."""
    if is_json:
        output = sys.stdout
        with contextlib.redirect_stdout(sys.stderr):
            yield _quietly(output, lambda event: to_json(event_document(event, codec), is_line=True))
    elif sys.stdout.isatty():
        from milepost.cli.spinner import Spinner

        with Spinner() as spinner:
            yield spinner
    else:
        # Nodes may print too, and a reader who has gone is no reason for them to fail.
        with contextlib.redirect_stdout(cast("TextIO", _Unbroken(sys.stdout))):
            yield _quietly(sys.stdout, line_of)


class _Unbroken:
    """A text stream that goes on quietly when nobody reads it any more, or its disk is full."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _quietly(output: TextIO, tell: Callable[[Event], str | None]) -> Watcher:
    """A hook that prints what `tell` gives, until nobody reads it any more."""
    is_read = True

    def show(event: Event) -> None:
        nonlocal is_read
        line = tell(event) if is_read else None
        if line is None:
            return
        try:
            print(line, file=output, flush=True)
        except OSError:
            is_read = False

    return show


# -- for programs ----------------------------------------------------------------------------------------


def event_document(event: Event, codec: Any) -> dict[str, Any]:
    """An event as JSON: states as they are recorded, times as ISO 8601, without the result."""
    document = event.to_dict()
    document["timestamp"] = iso(event.timestamp)
    document.pop("result", None)
    if isinstance(event, RunStarted):
        document["input"] = recorded(codec, event.input)
    return document


def recorded(codec: Any, state: Any) -> Any:
    """A state as the JSON that is recorded of it."""
    return json.loads(codec.encode(state))


# -- for people ------------------------------------------------------------------------------------------


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
