"""Shows a run while it runs: JSON lines for programs, plain lines, or lines and a spinner in a terminal.

Each is a hook. What cannot be printed (the reader has gone) never stops the run; the command notices at its end.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TextIO, cast

from milepost.cli.lines import line_of
from milepost.cli.text import iso, to_json
from milepost.model.events import Event, RunStarted, StepCompleted, WorkflowCompleted, WorkflowStarted
from milepost.model.messages import status_of
from milepost.model.results import SkipMarker

__all__ = ["Watcher", "event_document", "prints_aside", "recorded", "watching"]


class Watcher(Protocol):
    """A hook that shows events."""

    def __call__(self, event: Event) -> None:
        """Show one event."""


def prints_aside(is_json: bool) -> contextlib.AbstractContextManager[object]:
    """Under JSON what nodes print goes to the standard error, for as long as the block lasts."""
    return contextlib.redirect_stdout(sys.stderr) if is_json else contextlib.nullcontext()


@contextlib.contextmanager
def watching(codec: Any, *, is_json: bool) -> Iterator[Watcher]:
    """Give the hook that suits where the output goes. Under JSON what nodes print goes to the standard error."""
    if is_json:
        output = sys.stdout
        with prints_aside(is_json):
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
            print(f"{line}\n", end="", file=output, flush=True)  # in one piece, whatever nodes print meanwhile
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
    elif isinstance(event, WorkflowStarted):
        # Of a run that had finished nothing is read but its end.
        is_told = event.resumed is None or not event.resumed.already_completed
        document["inputs"] = recorded(codec, event.inputs) if is_told and event.inputs else {}
    elif isinstance(event, StepCompleted) and event.outcome in {"failed", "skipped"}:
        result = event.result
        document["error"] = None if result.error is None else f"{result.error_type}: {result.error}"
        document["reason"] = result.output.reason if isinstance(result.output, SkipMarker) else None
    elif isinstance(event, WorkflowCompleted):
        document["status"] = status_of(event)
    return document


def recorded(codec: Any, state: Any) -> Any:
    """A state as the JSON that is recorded of it."""
    return json.loads(codec.encode(state))
