"""Shows a run in a terminal while it runs: what `show` tells, drawn again whenever the run moves. Draws with rich."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from milepost.cli.tables import drawn_table, fact_lines
from milepost.cli.watching import follow
from milepost.errors import DeserializeStateError
from milepost.model.info import RunInfo
from milepost.model.record import CHECKPOINT, Record
from milepost.store import RunSnapshot, Store

__all__ = ["redrawn"]


class RunView(Protocol):
    """One look at a run, as `show` has it."""

    def facts(self) -> list[tuple[str, object]]:
        """Names and values."""
        ...

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[object]], Sequence[str]]:
        """Columns, rows, and the style of each row."""
        ...


def redrawn(store: Store, run_id: str, look: Callable[[RunSnapshot, Sequence[Record]], RunView]) -> RunInfo:
    """Draw a run until it ends; how it stands then. What was drawn is taken away again."""
    console = Console(highlight=False)
    records: list[Record] = []
    drawn: tuple[int, RunInfo] | None = None
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for page, info in follow(store, run_id):
            records += map(_light, page)
            if drawn != (len(records), info):
                drawn = len(records), info
                live.update(_picture(look(store.latest(run_id), records), console), refresh=True)
    return info


def _light(record: Record) -> Record:
    """A record without the state of a graph, which may be large, and which nothing of the tree shows."""
    with contextlib.suppress(DeserializeStateError):
        if record.kind == CHECKPOINT and not record.is_foreign and "step_type" not in record.fields():
            return record._replace(payload=None, packing="")
    return record


def _picture(look: RunView, console: Console) -> Group:
    columns, rows, styles = look.table()
    facts = Text("\n".join(fact_lines(look.facts())))
    if not rows:
        return Group(facts)
    table, _ = drawn_table(columns, rows, styles, console.width)
    return Group(facts, Text(), table)
