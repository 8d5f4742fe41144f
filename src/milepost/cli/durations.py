"""Durations as options take them: a number with its unit, so that nobody deletes by the second what is meant by the day."""

from __future__ import annotations

import re

import click

__all__ = ["read_duration", "read_pause"]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", re.ASCII)


def read_duration(text: str) -> float:
    """Read a duration such as `30d`; it is given in seconds. `click.BadParameter` without a unit, and for anything else."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is no duration: give a number and s, m, h, d or w, such as 30d")
    number, unit = found.groups()
    if not unit:
        raise click.BadParameter(f"{text!r} has no unit: give {number}s for seconds, or m, h, d or w, such as 30d")
    return float(number) * _UNITS[unit]


def read_pause(text: str) -> float:
    """Read a duration that is longer than none."""
    seconds = read_duration(text)
    if not seconds:
        raise click.BadParameter(f"{text!r} is no time at all: give more than 0s")
    return seconds
