"""The comparison as a picture: for each work a bar per system, from Milepost's cost to the system's, on a logarithmic axis.

Plain SVG with a style sheet of its own, which follows the reader's light or dark theme.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.peers.report import Line, number, ratio
from benchmarks.peers.systems import LIMIT, OURS, SYSTEMS

__all__ = ["to_svg"]

_COLUMN, _LABELS, _FIGURES = 500, 158, 50
"""Widths: of each of the two columns, and in it of the systems' names and of the last figure."""
_TOP, _BAR, _GAP, _TITLE = 80, 15, 12, 20
_COLORS = {
    LIMIT: ("#8c959f", "#6e7681"),
    "milepost-steps": ("#1a7f37", "#3fb950"),
    "langgraph": ("#0969da", "#58a6ff"),
    "dbos": ("#8250df", "#bc8cff"),
    "burr": ("#bc4c00", "#f0883e"),
    "absurd": ("#bf3989", "#f778ba"),
    "pydantic-graph": ("#9a6700", "#d29922"),
    "llama-index": ("#1b7c83", "#39c5cf"),
}
_Group = tuple[str, list[tuple[str, float]]]
"""What a work is called, and the ratio of each system."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """From which power of ten to which, and where on the page."""

    low: int
    high: int
    left: float

    def __call__(self, factor: float) -> float:
        share = (math.log10(factor) - self.low) / (self.high - self.low)
        return self.left + _LABELS + share * (_COLUMN - _LABELS - _FIGURES)


def to_svg(lines: Sequence[Line]) -> str:
    """The lines that have a name in the chart, in order, in two columns."""
    groups = [(line.chart, _bars(line)) for line in lines if line.chart]
    groups = [group for group in groups if group[1]]
    factors = [1.0, *(factor for _, bars in groups for _, factor in bars)]
    low, high = math.floor(math.log10(min(factors))), max(math.ceil(math.log10(max(factors))), 1)
    first = _first_half(groups)
    height = _TOP + max(_height(groups[:first]), _height(groups[first:]))
    parts = [*_frame(height)]
    for left, column in ((0, groups[:first]), (_COLUMN, groups[first:])):
        parts += _column(column, _Axis(low, high, left), height)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bars(line: Line) -> list[tuple[str, float]]:
    found = ((system, ratio(line, system)) for system in _COLORS)
    return [(system, factor) for system, factor in found if factor is not None]


def _height(groups: Sequence[_Group]) -> int:
    return sum(_TITLE + len(bars) * _BAR + _GAP for _, bars in groups)


def _first_half(groups: Sequence[_Group]) -> int:
    """How many groups the first column has, so that the columns are about as high."""
    return min(range(len(groups) + 1), key=lambda n: max(_height(groups[:n]), _height(groups[n:])))


def _frame(height: int) -> Iterator[str]:
    light = "".join(f".{name}{{fill:{color}}}" for name, (color, _) in _COLORS.items())
    dark = "".join(f".{name}{{fill:{color}}}" for name, (_, color) in _COLORS.items())
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_COLUMN * 2} {height}" width="{_COLUMN * 2}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="12" role="img">'
    )
    yield "<title>What the same work costs beside Milepost</title>"
    yield (
        "<style>.page{fill:#ffffff}text{fill:#1f2328}.title,.head{font-weight:600}.head{font-size:15px}"
        f".tick{{stroke:#d1d9e0}}.one{{stroke:#1f2328;stroke-width:1.5}}{light}"
        "@media (prefers-color-scheme:dark){.page{fill:#0d1117}text{fill:#e6edf3}.tick{stroke:#30363d}"
        f".one{{stroke:#e6edf3}}{dark}}}</style>"
    )
    yield f'<rect class="page" width="{_COLUMN * 2}" height="{height}" rx="6"/>'
    yield f'<text class="head" x="16" y="26">Cost beside that of {SYSTEMS[OURS].title} (1x)</text>'
    yield '<text x="16" y="44">right of the line dearer, left cheaper; logarithmic; medians of ratios within a round</text>'


def _column(groups: Sequence[_Group], axis: _Axis, height: int) -> Iterator[str]:
    for power in range(axis.low, axis.high + 1):
        across, kind = axis(10.0**power), "tick" if power else "one"
        yield f'<line class="{kind}" x1="{across:.1f}" x2="{across:.1f}" y1="70" y2="{height - 8}"/>'
        yield f'<text x="{across:.1f}" y="65" text-anchor="middle">{10.0**power:g}x</text>'
    below = _TOP
    for title, bars in groups:
        yield f'<text class="title" x="{axis.left + 16:.0f}" y="{below + 13}">{escape(title)}</text>'
        below += _TITLE
        for system, factor in bars:
            yield from _bar(system, factor, axis, below)
            below += _BAR
        below += _GAP


def _bar(system: str, factor: float, axis: _Axis, below: int) -> Iterator[str]:
    one, end = axis(1), axis(factor)
    name, begin, width = escape(SYSTEMS[system].title), min(one, end), max(abs(end - one), 1.0)
    yield f'<text x="{axis.left + _LABELS - 8:.0f}" y="{below + 11}" text-anchor="end">{name}</text>'
    yield f'<rect class="{system}" x="{begin:.1f}" y="{below + 1}" width="{width:.1f}" height="{_BAR - 3}"/>'
    yield f'<text x="{max(one, end) + 5:.1f}" y="{below + 11}">{number(factor)}x</text>'
