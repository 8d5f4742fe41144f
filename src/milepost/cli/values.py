"""Values as options take them: durations, times, pairs and JSON. A wrong one is a mistake of usage that says what to give."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from milepost.model.durations import LONGEST
from milepost.model.typed_json import UnfitJsonError, parse_json

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", re.ASCII)


def read_duration(text: str) -> float:
    """Read a duration such as `30d`; it is given in seconds.

    Raises `click.BadParameter` without a unit, for more than 100 years, and for anything else.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is no duration: give a number and s, m, h, d or w, such as 30d")
    number, unit = found.groups()
    if not unit:
        raise click.BadParameter(f"{text!r} has no unit: give {number}s for seconds, or m, h, d or w, such as 30d")
    seconds = float(number) * _UNITS[unit]
    if seconds > LONGEST:
        raise click.BadParameter(f"{text!r} is too long: give at most 100 years, such as 30d")
    return seconds


def read_pause(text: str) -> float:
    """Read a duration that is longer than none."""
    seconds = read_duration(text)
    if not seconds:
        raise click.BadParameter(f"{text!r} is no time at all: give more than 0s")
    return seconds


def read_pairs(pairs: Sequence[str], option: str) -> dict[str, str]:
    """The values of an option `key=value` that may be repeated."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{option} takes key=value, not {pair!r}")
        if key in found:
            raise click.UsageError(f"{option} gives {key!r} twice")
        found[key] = value
    return found


def read_time(text: str, option: str) -> datetime:
    """The time that an option gives, with its zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise click.UsageError(f"{option} takes a time such as 2026-12-24T18:00:00Z, not {text!r}") from exc
    if moment.tzinfo is None:
        example = moment.isoformat(timespec="seconds")
        raise click.UsageError(f"{option} takes a time with its zone, such as {example}Z or {example}+01:00")
    return moment


def read_json(text: str, what: str) -> Any:
    """The value of JSON text ("-": the standard input); `what` names it in the `click.UsageError` for other text."""
    if text == "-":
        text = sys.stdin.read()
    try:
        return parse_json(text)
    except UnfitJsonError as exc:
        raise click.UsageError(f"{what} can't be taken: {exc}") from exc
    except ValueError as exc:
        raise click.UsageError(f"{what} is no JSON: {exc}: a text is written with its quotes, '\"like this\"'") from exc


def read_value(text: str, what: str) -> Any:
    """JSON where the text is JSON, else the text; `what` names it in the `click.UsageError` for JSON that can't be taken."""
    try:
        return parse_json(text)
    except UnfitJsonError as exc:
        raise click.UsageError(f"{what} can't be taken: {exc}") from exc
    except ValueError:
        return text
