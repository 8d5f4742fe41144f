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
    return escaped_json(text)


def escaped_json(text: str) -> str:
    """Return JSON with escapes in its texts for what a terminal could take for a command; outside of them there is none."""
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


_ROWS_BESIDE = 6
"""Rows of a terminal that are left to what stands above and below a value."""


def fit_screen(text: str) -> tuple[str, int]:
    """Return as much of a text as a screen shows beside other lines, and the number of lines that are left out."""
    import shutil

    columns, rows = shutil.get_terminal_size()
    lines, left = text.split("\n"), max(rows - _ROWS_BESIDE, 4)
    for number, line in enumerate(lines):
        left -= len(line) // columns + 1
        if left < 0:
            shown = lines[:number] or [line[: columns * (rows - _ROWS_BESIDE)] + "…"]
            return "\n".join(shown), len(lines) - number
    return text, 0


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
_WHOLE = frozenset({"status", "became", "verdict", "time", "updated"})
"""The columns that are never cut or folded; nor is the first one."""
_SHORT = 20
"""Columns of a terminal up to which a table's column is never folded."""
_FOLDED, _CUT = 12, 6
"""Columns of a terminal that a table's column keeps when it is folded or cut."""


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, styles: Sequence[str] = (), is_cut: bool = False
) -> None:
    """Print rows under a header; "" and None are shown as "-".

    `styles` has one for each row of a terminal's table, where `is_cut` gives each row one line.
    """
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console(highlight=False)
        table, console.width = drawn_table(columns, rows, styles, console.width, is_cut=is_cut)
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
    columns: Sequence[str], rows: Sequence[Sequence[object]], styles: Sequence[str], width: int, *, is_cut: bool = False
) -> tuple[Table, int]:
    """Make the table for a terminal of that width; return it with the width of its lines.

    The first column, statuses and times stay whole, for copying and for the eye. Long texts fold between words, or with
    `is_cut` end in an ellipsis; columns without any room are left out then, the last ones first. If that is not enough,
    the terminal breaks the lines itself, as it does with those of any other program.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    texts = [[_cell(value) for value in row] for row in rows]
    widths = {i: max(len(row[i]) for row in (columns, *texts)) for i in range(len(columns))}
    is_narrow = sum(widths.values()) + 3 * len(widths) > width
    gap = 1 if is_cut else 2
    least = _CUT if is_cut else _FOLDED
    soft = [i for i in widths if i and columns[i] not in _WHOLE and (is_cut or widths[i] > _SHORT)]
    while is_narrow and (surplus := sum(widths.values()) + gap * (len(widths) - 1) - width) > 0:
        widest = max(soft, key=lambda i: widths[i], default=None)
        if widest is not None and widths[widest] > least:
            widths[widest] = max(least, widths[widest] - max(1, surplus // len(soft)))
        elif is_cut and soft:
            del widths[soft.pop()]
        else:
            width += surplus
    table = Table(box=None if is_narrow else box.SIMPLE_HEAD, pad_edge=False, collapse_padding=is_narrow and is_cut)
    for i, wide in widths.items():
        is_whole = is_cut or i not in soft
        table.add_column(columns[i], overflow="ellipsis" if is_cut else "fold", no_wrap=is_whole, width=wide)
    for number, row in enumerate(texts):
        style = styles[number] if number < len(styles) else ""
        table.add_row(*(Text(row[i], style=STYLES.get(row[i], "")) for i in widths), style=style)
    return table, width
