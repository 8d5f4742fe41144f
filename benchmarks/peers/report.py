"""What was measured as people read it: a Markdown table, beside the settings of every system and the machine.

A cell has the median over the rounds and, in brackets, how many times Milepost's cost that is: the median of the ratios
within a round. Above 1 the system costs more than Milepost's graph, below 1 less; a rate is turned over for that.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.peers.systems import LIMIT, OURS, SYSTEMS

__all__ = ["BEGIN", "END", "Comparison", "Line", "filled", "from_json", "number", "ratio", "to_json", "to_markdown"]

BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
_NOISE = 0.97
"""Nearer to 1 a ratio says nothing."""
_COLUMNS = tuple(name for name in SYSTEMS if name != "langgraph-delta")


@dataclass(frozen=True, slots=True)
class Line:
    """One work. `values` has for each system one value per round, in `unit`."""

    name: str
    unit: str
    values: Mapping[str, Sequence[float]]
    is_rate: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)
    """What a reader must know of a system's value."""
    chart: str = ""
    """What the chart calls it; nothing: it is not in the chart."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that a measurement gave."""

    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    settings: Mapping[str, Mapping[str, str]]
    """By system and by what it was used for: how its store was set, as it told itself."""
    lines: Sequence[Line]
    failed: Sequence[str] = ()
    unmeasured: Sequence[str] = ()


def to_json(comparison: Comparison) -> str:
    """All values of all rounds."""
    return json.dumps(asdict(comparison), indent=1)


def from_json(text: str) -> Comparison:
    """What `to_json` gave."""
    found = json.loads(text)
    return Comparison(**{**found, "lines": [Line(**line) for line in found["lines"]]})


def ratio(line: Line, system: str) -> float | None:
    """How many times Milepost's cost; None where one of the two was not measured, or got nothing done."""
    pairs = list(zip(line.values.get(system, ()), line.values.get(OURS, ()), strict=False))
    if not pairs or not all(min(pair) > 0 for pair in pairs):
        return None
    return statistics.median(ours / value if line.is_rate else value / ours for value, ours in pairs)


def number(value: float) -> str:
    """Three digits, without an exponent."""
    if value >= 1000:
        return f"{round(value, -len(str(int(value))) + 3):,.0f}"
    return f"{value:.0f}" if value >= 100 or value == 0 else f"{value:.3g}"


def to_markdown(comparison: Comparison) -> str:
    """The table, where peers are faster, how each system was set, and the machine."""
    measured = [name for name in _COLUMNS if any(name in line.values for line in comparison.lines)]
    rows = [
        ["work", *(SYSTEMS[name].title for name in measured)],
        ["---"] * (len(measured) + 1),
        *([f"{line.name}, {line.unit}", *(_cell(line, name) for name in measured)] for line in comparison.lines),
    ]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    parts = [
        table,
        *_faster(comparison.lines, measured),
        "How each was set:",
        "\n".join(_settings(comparison)),
        _machine(comparison),
    ]
    parts += [f"Not measured: {what}." for what in comparison.unmeasured]
    parts += [f"Failed: {what}." for what in comparison.failed]
    return "\n\n".join(parts)


def _cell(line: Line, system: str) -> str:
    if not line.values.get(system):
        return "none"
    told = number(statistics.median(line.values[system]))
    factor = None if system == OURS else ratio(line, system)
    if factor is not None:
        told += f" ({number(factor)}x)"
    if system == OURS and (floor := ratio(line, LIMIT)):
        told += f" ({number(1 / floor)}x no library)"
    if system not in (LIMIT, OURS) and _is_cheaper(line, system):
        told = f"**{told}**"
    return told + (f", {line.notes[system]}" if system in line.notes else "")


def _faster(lines: Sequence[Line], measured: Sequence[str]) -> Iterator[str]:
    """A sentence on the works in which a peer costs less than Milepost's graph."""
    found = []
    for name in measured:
        if name != LIMIT and not name.startswith(OURS):
            cheaper = [f"{line.name} ({number(ratio(line, name) or 0)}x)" for line in lines if _is_cheaper(line, name)]
            found += [f"**{SYSTEMS[name].title}** in " + ", ".join(cheaper)] if cheaper else []
    if found:
        yield "Where a peer costs less than Milepost's graph: " + "; ".join(found) + "."
    else:
        yield "No peer cost less than Milepost's graph in a work that was measured here."


def _is_cheaper(line: Line, system: str) -> bool:
    factor = ratio(line, system)
    return factor is not None and factor < _NOISE


def _settings(comparison: Comparison) -> Iterator[str]:
    for system in SYSTEMS:
        if system not in comparison.settings:
            continue
        known = [name for name in SYSTEMS[system].distributions if name in comparison.versions]
        versions = ", ".join(f"{name} {comparison.versions[name]}" for name in known)
        title = SYSTEMS[system].title + (f" ({versions})" if versions else "")
        told = "; ".join(f"{use}: {setting}" for use, setting in comparison.settings[system].items())
        yield f"* **{title}**: {told or 'keeps nothing durably by itself'}."


def _machine(comparison: Comparison) -> str:
    return "Measured on: " + ", ".join(f"{name} {value}" for name, value in comparison.machine.items()) + "."


def filled(page: str, generated: str) -> str:
    """The page with `generated` between its two marks; a page without them is replaced."""
    told = f"{BEGIN}\n{generated}\n{END}"
    if BEGIN not in page or END not in page:
        return told + "\n"
    before, _, rest = page.partition(BEGIN)
    return before + told + rest.partition(END)[2]
