"""Values and tables as text, for people and programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from milepost.views.text import clean

if TYPE_CHECKING:
    from rich.table import Table

# -- Values as text for people and as JSON for programs. Nothing here prints -----------------------


def to_json(document: Any, *, is_line: bool = False) -> str:
    """A document as JSON: indented for a terminal, in one line elsewhere or with `is_line`."""
    indent = 2 if sys.stdout.isatty() and not is_line else None
    try:
        return _dumped(document, indent, allow_nan=False)
    except ValueError:
        return _dumped(_finite(document), indent)


def _dumped(value: Any, indent: int | None, **options: Any) -> str:
    # What an output of another encoding lacks, it would write with escapes that JSON does not know.
    is_utf8 = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"
    text = json.dumps(value, ensure_ascii=not is_utf8, indent=indent, default=clean, **options)
    # Outside of its texts JSON has nothing that a terminal could take for a command.
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def _finite(value: Any) -> Any:
    """Return what a node emitted, with text for the numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def pretty(value: Any) -> str:
    """A JSON value, indented."""
    return _dumped(value, 2)


# -- Tables: drawn in a terminal, aligned text elsewhere -------------------------------------------


STYLES = {
    "finished": "green",
    "running": "cyan",
    "ready": "cyan",
    "waiting": "magenta",
    "interrupted": "yellow",
    "dead": "yellow",
    "failed": "red",
    "blocked": "red",
    "cancelled": "dim",
}
"""The style of a run's status in a terminal."""
_STEP_STYLES = {
    "done": "",
    "skipped": "dim",
    "recovered": "yellow",
    "failed": "red",
    "rolled back": "yellow",
    "rollback failed": "red",
    "waiting": "magenta",
    "running": "cyan",
    "next": "yellow",
    "in flight": "cyan",
    "unfinished": "dim",
}
"""The style of the status of a step or visit."""
_WHOLE = 20
"""Columns of a terminal up to which a table's column is never folded."""
_FOLDED = 12
"""Columns of a terminal that a table's column keeps when it is folded."""


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, styles: Sequence[str] = ()) -> None:
    """Print rows under a header; "" and None are shown as "-". `styles` has one for each row of a terminal's table."""
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console(highlight=False)
        table, console.width = drawn_table(columns, rows, styles, console.width)
        console.print(table)
        return
    texts = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(row[i]) for row in (list(columns), *texts)) for i in range(len(columns))]
    for row in (list(columns), *texts):
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def print_facts(facts: Sequence[tuple[str, object]]) -> None:
    """Print names and values, one a line; values of "" and None are left out."""
    for line in fact_lines(facts):
        print(line)


def fact_lines(facts: Sequence[tuple[str, object]]) -> Iterator[str]:
    """The lines of `print_facts`."""
    width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        if value not in (None, ""):
            yield f"{name.ljust(width)}  {clean(value)}"


def styles_of(statuses: Iterable[str]) -> list[str]:
    """Return the style of a terminal for each status of a step or visit."""
    return [_STEP_STYLES.get(status, "") for status in statuses]


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else clean(value)


def drawn_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], styles: Sequence[str], width: int
) -> tuple[Table, int]:
    """The table for a terminal of that width, and how wide the lines are that it needs."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    texts = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(row[i]) for row in (columns, *texts)) for i in range(len(columns))]
    # Ids, statuses and times are for copying and for the eye: they stay whole, and long texts fold beside them. A
    # terminal too narrow for that breaks the lines itself, as it does with those of any other program.
    is_whole = [number == 0 or width <= _WHOLE for number, width in enumerate(widths)]
    needed = sum(width if whole else _FOLDED for width, whole in zip(widths, is_whole, strict=True)) + 3 * len(widths)
    is_narrow = needed > width
    table = Table(box=None if is_narrow else box.SIMPLE_HEAD, pad_edge=False)
    for column, whole in zip(columns, is_whole, strict=True):
        table.add_column(column, overflow="fold", no_wrap=whole or is_narrow)
    for number, row in enumerate(texts):
        style = styles[number] if number < len(styles) else ""
        table.add_row(*(Text(text, style=STYLES.get(text, "")) for text in row), style=style)
    return table, sum(widths) + 3 * len(widths) if is_narrow else width
