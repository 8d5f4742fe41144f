"""The way to a branch of a fork, or to an item of a map, as records tell it in `branch`.

It is written `fork#visit/branch`, the outermost first: so what is inside something begins with the way to that. Ids have no
whitespace and may have `#`, but what follows the number of a visit is a slash, and no id of a branch has one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Segment", "turnings", "way_to"]

_TURNING = re.compile(r"/?(.+?)#(\d+)/([^/]*)")


class Segment(NamedTuple):
    """Where a way turns into a branch of a fork, or to an item of a map; `outer` is the way up to there."""

    fork: str
    visit: int
    branch: str
    outer: str


def way_to(outer: str, fork: str, visit: int, branch: str) -> str:
    """The way to a branch of the fork, whole id, that lies at the end of `outer` ("" for what is in none)."""
    turning = f"{fork}#{visit}/{branch}"
    return f"{outer}/{turning}" if outer else turning


def turnings(way: str) -> list[Segment]:
    """Where a way turns, the outermost first; [] for one that is none."""
    return [Segment(found[1], int(found[2]), found[3], way[: found.start()]) for found in _TURNING.finditer(way)]
