"""Draws rain by month and year as SVG, by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_COLOURS = ("#9ecae1", "#6baed6", "#3182bd", "#08519c")
_WIDTH, _HEIGHT = 860, 360
_LEFT, _TOP, _BOTTOM = 48, 56, 300
_STEP = 50
"""Millimetres between two lines of the grid."""


def rain_chart(years: Mapping[int, Sequence[float]]) -> str:
    """Draw millimetres of rain as bars: twelve groups of months, a bar for each year. The same data, the same text."""
    highest = max((max(months) for months in years.values()), default=0.0)
    top = (int(highest) // _STEP + 1) * _STEP
    scale = (_BOTTOM - _TOP) / top
    group = (_WIDTH - _LEFT - 16) / 12
    bar = group * 0.8 / max(len(years), 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="12" role="img">',
        "<title>Rain in Seattle by month</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="24" font-size="16">Rain in Seattle by month, mm</text>',
    ]
    for level in range(0, top + 1, _STEP):
        y = _BOTTOM - level * scale
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - 16}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#555555">{level}</text>')
    for month, name in enumerate(MONTHS):
        left = _LEFT + group * month + group * 0.1
        for place, (year, rains) in enumerate(years.items()):
            height = rains[month] * scale
            parts.append(
                f'<rect x="{left + bar * place:.1f}" y="{_BOTTOM - height:.1f}" width="{bar - 1:.1f}" '
                f'height="{height:.1f}" fill="{_COLOURS[place % 4]}"><title>{name} {year}: {rains[month]:g} mm</title></rect>'
            )
        middle = left + group * 0.4
        parts.append(f'<text x="{middle:.1f}" y="{_BOTTOM + 18}" text-anchor="middle" fill="#555555">{name}</text>')
    for place, year in enumerate(years):
        x = _LEFT + place * 70
        parts.append(f'<rect x="{x}" y="{_HEIGHT - 28}" width="12" height="12" fill="{_COLOURS[place % 4]}"/>')
        parts.append(f'<text x="{x + 18}" y="{_HEIGHT - 18}" fill="#555555">{year}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
