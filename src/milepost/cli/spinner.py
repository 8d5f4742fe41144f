"""Shows a run in a terminal: a line for each thing that ended, and a spinner for what goes on. Draws with rich."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.text import Text

from milepost.cli.tables import STYLES
from milepost.model.events import (
    AttemptFailed,
    CheckpointFailed,
    Event,
    NodeCompleted,
    NodeStarted,
    Progress,
    RollbackCompleted,
    RunCompleted,
    RunWaiting,
    StepCompleted,
    StepStarted,
    WorkflowCompleted,
)
from milepost.model.messages import status_of
from milepost.views.events import line_of, progress_text, step_of, visit_of

__all__ = ["Spinner"]


class Spinner:
    """A hook, and a context manager that leaves the terminal as it was."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._status = self._console.status("")
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._status.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._status.stop()

    def __call__(self, event: Event, error: str | None = None) -> None:
        """Show one event; `error`: what to say of its error."""
        with self._lock:
            if isinstance(event, NodeStarted):
                attempt = f" attempt {event.attempt}" if event.attempt > 1 else ""
                self._status.update(Text(f"{visit_of(event).rstrip()}{attempt}", style="cyan"))
            elif isinstance(event, StepStarted):
                self._status.update(Text(step_of(event), style="cyan"))
            elif isinstance(event, Progress):
                self._status.update(Text(f"{event.node_id}: {progress_text(event)}", style="cyan"))
            elif (line := line_of(event, error)) is not None:
                self._console.print(Text(line, style=_style(event)))


def _style(event: Event) -> str:
    if isinstance(event, (AttemptFailed, CheckpointFailed)):
        return "red" if getattr(event, "retry_in", None) is None else "yellow"
    if isinstance(event, NodeCompleted):
        return "green"
    if isinstance(event, StepCompleted):
        return {"succeeded": "green", "failed": "red"}.get(event.outcome, "yellow")
    if isinstance(event, RollbackCompleted):
        return "yellow" if event.error is None else "red"
    if isinstance(event, RunWaiting):
        return STYLES["waiting"]
    if isinstance(event, (RunCompleted, WorkflowCompleted)):
        return "bold " + {"finished": "green", "waiting": STYLES["waiting"]}.get(status_of(event), "red")
    return ""
