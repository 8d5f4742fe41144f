"""Tables: drawn in a terminal, aligned text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from milepost.cli.text import clean

__all__ = ["print_facts", "print_table"]

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
"""What a run's status looks like in a terminal."""


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, styles: Sequence[str] = ()) -> None:
    """Print rows under a header; "" and None are shown as "-". `styles` has one for each row of a terminal's table."""
    texts = [[_cell(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        _draw(columns, texts, styles)
        return
    widths = [max(len(row[i]) for row in (list(columns), *texts)) for i in range(len(columns))]
    for row in (list(columns), *texts):
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def print_facts(facts: Sequence[tuple[str, object]]) -> None:
    """Print names and values, one a line; values of "" and None are left out."""
    width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        if value not in (None, ""):
            print(f"{name.ljust(width)}  {clean(value)}")


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else clean(value)


def _draw(columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column)
    for number, row in enumerate(rows):
        style = styles[number] if number < len(styles) else ""
        table.add_row(*(Text(text, style=STYLES.get(text, "")) for text in row), style=style)
    Console(highlight=False).print(table)
