"""The path to a branch of a fork, or to an item of a map, as records have it in their field `branch`.

A path is a row of segments `fork#visit/branch`, the outermost first, so an inner path begins with the path that is
around it. Ids have no whitespace. They may have `#`, but a slash follows the number of a visit, and no branch id has
one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Segment", "turnings", "way_to"]

_TURNING = re.compile(r"/?(.+?)#(\d+)/([^/]*)")


class Segment(NamedTuple):
    """One segment of a path: a branch of a fork, or an item of a map. `outer` is the path before it."""

    fork: str
    visit: int
    branch: str
    outer: str


def way_to(outer: str, fork: str, visit: int, branch: str) -> str:
    """Give the path to `branch` of `fork` (its whole id), which is at the end of `outer` ("": it is in no branch)."""
    turning = f"{fork}#{visit}/{branch}"
    return f"{outer}/{turning}" if outer else turning


def turnings(way: str) -> list[Segment]:
    """Split a path into its segments, the outermost first; [] for a text that is no path."""
    return [Segment(found[1], int(found[2]), found[3], way[: found.start()]) for found in _TURNING.finditer(way)]
