"""A run in a terminal while it goes on, drawn with rich.

It is shown as a spinner with a line for each node or step that has ended, or as a tree that is redrawn on each change.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from milepost.cli.text import STYLES, drawn_table, fact_lines, styles_of
from milepost.errors import DeserializeStateError
from milepost.model.events import AttemptFailed, CheckpointFailed, Event, Progress
from milepost.model.info import RunInfo
from milepost.model.lifecycle import (
    NodeCompleted,
    NodeStarted,
    RollbackCompleted,
    RunBlocked,
    RunCompleted,
    RunWaiting,
    StepCompleted,
    StepStarted,
    WorkflowCompleted,
    status_of,
)
from milepost.model.record import CHECKPOINT, Record
from milepost.views.events import line_of, progress_text, step_of, visit_of
from milepost.views.status import RunView
from milepost.views.text import clean


class Spinner:
    """A hook that shows events, and a context manager that restores the terminal at its end."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._status = self._console.status("")
        self._lock = threading.Lock()
        self._counted: str | None = None
        """The map whose progress is shown; the start of one of its items does not replace it."""

    def __enter__(self) -> Self:
        self._status.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._status.stop()

    def __call__(self, event: Event, error: str | None = None) -> None:
        """Show one event. `error` is the text of its error, if that is not the usual one."""
        with self._lock:
            if isinstance(event, NodeStarted):
                if event.node_id.rpartition("/")[0] == self._counted:
                    return
                attempt = f" attempt {event.attempt}" if event.attempt > 1 else ""
                self._status.update(Text(f"{visit_of(event).rstrip()}{attempt}", style="cyan"))
            elif isinstance(event, StepStarted):
                if event.step_name.rpartition("/")[0] == self._counted:
                    return
                self._status.update(Text(step_of(event), style="cyan"))
            elif isinstance(event, Progress):
                self._counted = event.node_id
                self._status.update(Text(f"{clean(event.node_id)}: {progress_text(event)}", style="cyan"))
            elif (line := line_of(event, error)) is not None:
                self._console.print(Text(line, style=_style(event)))


def _style(event: Event) -> str:
    if isinstance(event, RunBlocked):
        return "red"
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


def redrawn(pages: Iterable[tuple[list[Record], RunInfo]], to_view: Callable[[Sequence[Record]], RunView]) -> RunInfo:
    """Draw a run after each page of its records until the run ends. Remove the drawing, and return the run's last row."""
    console = Console(highlight=False)
    records: list[Record] = []
    drawn: tuple[int, RunInfo] | None = None
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for page, info in pages:
            records += map(_light, page)
            if drawn != (len(records), info):
                drawn = len(records), info
                live.update(_picture(to_view(records), console), refresh=True)
    return info


def _light(record: Record) -> Record:
    """Return a record without the state of a graph: it may be large, and the tree does not show it."""
    with contextlib.suppress(DeserializeStateError):
        if record.kind == CHECKPOINT and not record.is_foreign and "step_type" not in record.fields():
            return record._replace(payload=None, packing="")
    return record


def _picture(view: RunView, console: Console) -> Group:
    columns, rows, statuses = view.table()
    facts = Text("\n".join(fact_lines(view.facts())))
    if not rows:
        return Group(facts)
    table, _ = drawn_table(columns, rows, styles_of(statuses), console.width)
    return Group(facts, Text(), table)
