"""Shows a run while it runs: JSON lines for programs, plain lines, or lines and a spinner in a terminal.

Each is a hook. What cannot be printed (the reader has gone) never stops the run; the command notices at its end.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TextIO, cast

from milepost.cli.text import to_json
from milepost.model.events import Event
from milepost.views.events import event_document, line_of


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
        from milepost.cli.terminal import Spinner

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
