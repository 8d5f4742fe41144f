"""Figures as the report tells them: a table for people and the same as JSON.

A figure has what the library took (`ours`), what its limit took (the same work without the library), and the one value
that counts (`value`): a ratio, a difference or the figure itself, computed within each round. Goals are about that
value. `goal` is what must be reached, `aim` what the project would like to reach where that is stricter.
"""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from benchmarks.rounds import Rounds, Spread

__all__ = ["Figure", "Goal", "as_json", "as_table", "at_least", "at_most", "compare", "machine"]

Measure = Literal["ratio", "beyond", "ours"]


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound for the value of a figure, in its unit; ratios have none."""

    bound: float
    is_floor: bool = False

    def is_reached(self, value: float) -> bool:
        """Whether `value` keeps the bound."""
        return value >= self.bound if self.is_floor else value <= self.bound

    def __str__(self) -> str:
        return f"{'>=' if self.is_floor else '<='} {self.bound:g}"


def at_most(bound: float) -> Goal:
    """The value must not be above `bound`."""
    return Goal(bound)


def at_least(bound: float) -> Goal:
    """The value must not be below `bound`."""
    return Goal(bound, is_floor=True)


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report. All numbers but ratios are in `unit`."""

    name: str
    place: str
    """disk, tmpfs, or memory where no file is written."""
    unit: str
    measure: Measure
    """What `value` is. ratio: ours / limit · beyond: ours - limit · ours: the figure itself."""
    ours: Spread
    limit: Spread | None
    limit_is: str
    value: Spread
    goal: Goal | None
    aim: Goal | None
    note: str

    @property
    def is_reached(self) -> bool | None:
        """Whether the median keeps the goal; None without one."""
        return None if self.goal is None else self.goal.is_reached(self.value.median)

    @property
    def is_aim_reached(self) -> bool | None:
        """Whether the median keeps the aim; None without one."""
        return None if self.aim is None else self.aim.is_reached(self.value.median)


def compare(
    name: str,
    rounds: Rounds,
    *,
    measure: Measure,
    unit: str,
    scale: float = 1.0,
    place: str = "memory",
    ours: str = "ours",
    limit: str | None = None,
    aside: str | None = None,
    limit_is: str = "",
    goal: Goal | None = None,
    aim: Goal | None = None,
    note: str = "",
) -> Figure:
    """Make a figure of sides of `rounds`, whose values times `scale` are in `unit`.

    `aside` is a side that is subtracted from ours first: work that the figure is not about.
    """
    mine = (ours, aside) if aside else (ours,)
    own = rounds.combine(lambda taken, less=0.0: (taken - less) * scale, *mine)
    if limit is None:
        return Figure(name, place, unit, "ours", own, None, "", own, goal, aim, note)
    value = own
    if measure == "ratio":
        value = rounds.combine(lambda other, taken, less=0.0: (taken - less) / other, limit, *mine)
    elif measure == "beyond":
        value = rounds.combine(lambda other, taken, less=0.0: (taken - less - other) * scale, limit, *mine)
    other = rounds.combine(lambda taken: taken * scale, limit)
    return Figure(name, place, unit, measure, own, other, limit_is, value, goal, aim, note)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "pragmas": "journal_mode=WAL synchronous=FULL, log moved into the database every 4 MB",
    }


def as_json(figures: Iterable[Figure], unmeasured: Sequence[str] = ()) -> str:
    """The report as JSON."""
    told = []
    for figure in figures:
        fields = asdict(figure)
        for bound in ("goal", "aim"):
            fields[bound] = None if fields[bound] is None else str(getattr(figure, bound))
        told.append({**fields, "reached": figure.is_reached, "aim_reached": figure.is_aim_reached})
    return json.dumps({"machine": machine(), "figures": told, "unmeasured": list(unmeasured)}, indent=2)


_COLUMNS = ("figure", "place", "ours", "limit", "value [min..max]", "goal", "reached", "aim", "reached")


def as_table(figures: Iterable[Figure], unmeasured: Sequence[str] = ()) -> str:
    """The report as a Markdown table, aligned so that it reads as it is."""
    rows = [_COLUMNS, *(_row(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    facts = ", ".join(f"{name} {value}" for name, value in machine().items())
    lines += ["", f"Measured on: {facts}."]
    lines += [f"Not measured: {what}." for what in unmeasured]
    return "\n".join(lines)


def _row(figure: Figure) -> tuple[str, ...]:
    value = figure.value
    sign, unit = ("x", "") if figure.measure == "ratio" else ("", f" {figure.unit}")
    plus = "+" if figure.measure == "beyond" and value.median >= 0 else ""
    told = f"{plus}{_number(value.median)}{sign}{unit} [{_number(value.low)}..{_number(value.high)}]"
    limit = "" if figure.limit is None else f"{_number(figure.limit.median)} {figure.unit} ({figure.limit_is})"
    return (
        figure.name + (f" ({figure.note})" if figure.note else ""),
        figure.place,
        f"{_number(figure.ours.median)} {figure.unit}",
        limit,
        told,
        "" if figure.goal is None else str(figure.goal),
        _yes(figure.is_reached),
        "" if figure.aim is None else str(figure.aim),
        _yes(figure.is_aim_reached),
    )


def _yes(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _number(value: float) -> str:
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def print_report(figures: Sequence[Figure], unmeasured: Sequence[str], *, is_json: bool) -> None:
    """Write the report to standard output."""
    sys.stdout.write((as_json if is_json else as_table)(figures, unmeasured) + "\n")
