"""The comparison as a picture: for each work a bar per system, from Milepost's cost to the system's, on a logarithmic axis.

Plain SVG with a style sheet of its own, which follows the reader's light or dark theme.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from benchmarks.peers.report import Line, number, ratio
from benchmarks.peers.systems import LIMIT, OURS, SYSTEMS

__all__ = ["to_svg"]

_WIDTH, _LEFT, _RIGHT = 880, 190, 70
_TOP, _BAR, _GAP, _TITLE = 78, 15, 14, 20
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


def to_svg(lines: Sequence[Line]) -> str:
    """The lines that have a name in the chart, in order."""
    groups = [(line, _bars(line)) for line in lines if line.chart]
    groups = [(line, bars) for line, bars in groups if bars]
    factors = [1.0, *(factor for _, bars in groups for _, factor in bars)]
    low, high = math.floor(math.log10(min(factors))), max(math.ceil(math.log10(max(factors))), 1)

    def across(factor: float) -> float:
        return _LEFT + (math.log10(factor) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    height = _TOP + sum(_TITLE + len(bars) * _BAR + _GAP for _, bars in groups) + 10
    parts = [*_frame(height, [10.0**power for power in range(low, high + 1)], across)]
    below = float(_TOP)
    for line, bars in groups:
        parts.append(f'<text class="title" x="16" y="{below + 13:.0f}">{escape(line.chart)}</text>')
        below += _TITLE
        for system, factor in bars:
            parts += _bar(system, factor, across(1), across(factor), below)
            below += _BAR
        below += _GAP
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bars(line: Line) -> list[tuple[str, float]]:
    found = ((system, ratio(line, system)) for system in SYSTEMS if system != OURS)
    return [(system, factor) for system, factor in found if factor is not None]


def _frame(height: float, ticks: Sequence[float], across: object) -> Iterator[str]:
    assert callable(across)
    dark = "".join(f".{name}{{fill:{color}}}" for name, (_, color) in _COLORS.items())
    light = "".join(f".{name}{{fill:{color}}}" for name, (color, _) in _COLORS.items())
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" '
        f'height="{height:.0f}" font-family="system-ui, sans-serif" font-size="12" role="img">'
    )
    yield "<title>What the same work costs beside Milepost</title>"
    yield (
        "<style>.page{fill:#ffffff}text{fill:#1f2328}.title,.head{font-weight:600}.head{font-size:15px}"
        ".tick{stroke:#d1d9e0}.one{stroke:#1f2328;stroke-width:1.5}"
        f"{light}@media (prefers-color-scheme:dark){{.page{{fill:#0d1117}}text{{fill:#e6edf3}}"
        f".tick{{stroke:#30363d}}.one{{stroke:#e6edf3}}{dark}}}</style>"
    )
    yield f'<rect class="page" width="{_WIDTH}" height="{height:.0f}" rx="6"/>'
    yield '<text class="head" x="16" y="26">Cost beside Milepost, graph (1x): right of the line dearer, left cheaper</text>'
    yield '<text x="16" y="44">medians of ratios within a round, logarithmic; of rates the inverse</text>'
    for tick in ticks:
        kind = "one" if tick == 1 else "tick"
        yield f'<line class="{kind}" x1="{across(tick):.1f}" x2="{across(tick):.1f}" y1="66" y2="{height - 8:.0f}"/>'
        yield f'<text x="{across(tick):.1f}" y="61" text-anchor="middle">{tick:g}x</text>'


def _bar(system: str, factor: float, one: float, end: float, below: float) -> Iterator[str]:
    start, width = min(one, end), max(abs(end - one), 1.0)
    yield f'<text x="{_LEFT - 14}" y="{below + 11:.0f}" text-anchor="end">{escape(SYSTEMS[system].title)}</text>'
    yield f'<rect class="{system}" x="{start:.1f}" y="{below + 1:.0f}" width="{width:.1f}" height="{_BAR - 3}"/>'
    yield f'<text x="{max(one, end) + 5:.1f}" y="{below + 11:.0f}">{number(factor)}x</text>'
