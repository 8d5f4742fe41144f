"""Shows a run in a terminal while it runs: what `show` tells, drawn again whenever the run moves. Draws with rich."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from milepost.cli.tables import drawn_table, fact_lines, styles_of
from milepost.errors import DeserializeStateError
from milepost.model.info import RunInfo
from milepost.model.record import CHECKPOINT, Record
from milepost.views.status import RunView

__all__ = ["redrawn"]


def redrawn(pages: Iterable[tuple[list[Record], RunInfo]], look: Callable[[Sequence[Record]], RunView]) -> RunInfo:
    """Draw a run, by the pages of its records, until it ends; return how it stands then. The drawing is removed again."""
    console = Console(highlight=False)
    records: list[Record] = []
    drawn: tuple[int, RunInfo] | None = None
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for page, info in pages:
            records += map(_light, page)
            if drawn != (len(records), info):
                drawn = len(records), info
                live.update(_picture(look(records), console), refresh=True)
    return info


def _light(record: Record) -> Record:
    """Return a record without the state of a graph, which may be large, and which the tree does not show."""
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
