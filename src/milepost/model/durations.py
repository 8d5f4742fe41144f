"""Durations, as seconds or a `timedelta`."""

from __future__ import annotations

from datetime import timedelta
from math import isfinite

from milepost.errors import OptionError, shown

LONGEST = 100 * 366 * 86400.0
"""Seconds of the longest duration: the clocks of all machines can wait this long, and a date stays within its range."""


def as_seconds(value: float | timedelta, option: str) -> float:
    """Return a duration as float seconds; `OptionError` unless it is a number from 0 to `LONGEST`."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not is_number(seconds) or not 0 <= seconds <= LONGEST:
        raise OptionError(
            f"{option} must be seconds or a timedelta, 0 or more and at most 100 years, not {shown(value)}",
            option=option,
        )
    return float(seconds)


def is_number(value: object) -> bool:
    """Return whether `value` is a finite number that a float can hold."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:
        return False
