"""The output of commands while they run flows: the events of a run.

A line that cannot be printed, because the reader has gone, never stops the run; the command reports that at its end.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TextIO, cast

from milepost.cli.logs import prints_aside
from milepost.cli.text import to_json
from milepost.model.events import Event
from milepost.views.events import event_document, line_of

# The events of a run: JSON lines for programs, plain lines for a pipe, lines and a spinner in a terminal.


class Watcher(Protocol):
    """A hook that prints events."""

    def __call__(self, event: Event) -> None:
        """Show one event."""


@contextlib.contextmanager
def watching(codec: Any, *, is_json: bool) -> Iterator[Watcher]:
    """Yield the hook that fits the standard output: JSON, a terminal or a pipe."""
    if is_json:
        output = sys.stdout
        with prints_aside(is_json):
            yield _quietly(output, lambda event: to_json(event_document(event, codec), is_line=True))
    elif sys.stdout.isatty():
        from milepost.cli.terminal import Spinner

        with Spinner() as spinner:
            yield spinner
    else:
        # Nodes may print too. They must not fail because the reader of the output has gone.
        with contextlib.redirect_stdout(cast("TextIO", _Unbroken(sys.stdout))):
            yield _quietly(sys.stdout, line_of)


class _Unbroken:
    """A text stream that drops what it cannot write, because its reader has gone or the disk is full."""

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


def _quietly(output: TextIO, to_line: Callable[[Event], str | None]) -> Watcher:
    """Return a hook that prints the line that `to_line` makes of an event, until the reader has gone."""
    is_read = True

    def show(event: Event) -> None:
        nonlocal is_read
        line = to_line(event) if is_read else None
        if line is None:
            return
        try:
            print(f"{line}\n", end="", file=output, flush=True)  # in one write, since nodes may print meanwhile
        except OSError:
            is_read = False

    return show
