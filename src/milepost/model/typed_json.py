"""JSON as people type it, on a command line or in a form: it is taken as it is written, or refused."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

from milepost.errors import cut, shown

DEEPEST = 500
"""The number of containers within each other. A state has fewer, its marks included, and every Python reads as many."""


class UnfitJsonError(ValueError):
    """The error for JSON that would not be taken as it is written."""


def parse_json(text: str) -> Any:
    """Read JSON that somebody typed.

    Raises `UnfitJsonError` for a number that is beyond a float or has too many digits, for a key that an object has twice and
    for what is nested too deep; another `ValueError` for text that is no JSON.
    """
    try:
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_read_float,
            parse_int=_read_int,
            object_pairs_hook=_read_object,
        )
    except RecursionError:
        raise UnfitJsonError("it is nested too deep") from None
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    layer = [value]
    for _ in range(DEEPEST + 1):
        containers = [each for each in layer if isinstance(each, (dict, list))]
        if not containers:
            return
        layer = [item for each in containers for item in (each.values() if isinstance(each, dict) else each)]
    raise UnfitJsonError("it is nested too deep")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _read_float(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise UnfitJsonError(f"{cut(text, 40)} is beyond the largest number")
    return number


def _read_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UnfitJsonError(f"a number has {len(text)} digits, which are too many") from None


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise UnfitJsonError(f"an object has the key {shown(key, 40)} twice")
        members[key] = value
    return members
