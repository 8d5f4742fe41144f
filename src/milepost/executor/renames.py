"""Renamed steps and nodes: from the ids under which they are recorded to those that they have now.

A map of new names applies to the records before the resume that gave it. The owner record of that resume holds the map
and all earlier ones, so that later resumes need not be given them again. Each record is read through the maps that came
after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Pairs = Mapping[str, str]


class Renames:
    """The recorded maps, the oldest first, each with the number of its record, and the map that is given now.

    A pair that is given now and recorded already is left out of `given`.
    """

    __slots__ = ("given", "recorded")

    def __init__(self, recorded: Iterable[tuple[int, Pairs]] = (), given: Pairs | None = None) -> None:
        self.recorded = tuple(recorded)
        standing: dict[str, str] = {}
        for _, pairs in self.recorded:
            standing = {old: new for old, new in standing.items() if new not in pairs} | dict(pairs)
        self.given = {old: new for old, new in (given or {}).items() if old != new and standing.get(old) != new}

    def __bool__(self) -> bool:
        return bool(self.recorded or self.given)

    @classmethod
    def read(cls, fields: Mapping[str, Any] | None, given: Pairs | None) -> Renames:
        """Read the recorded maps from the header fields of an owner record, and add the map that is given now."""
        recorded = (fields or {}).get("renames") or ()
        return cls(((int(sequence), pairs) for sequence, pairs in recorded), given)

    def as_fields(self, sequence: int) -> list[list[Any]] | None:
        """Give the maps for the owner record with this number to hold; None if there are none."""
        maps = [*self.recorded, *([(sequence, self.given)] if self.given else [])]
        return [[number, dict(pairs)] for number, pairs in maps] or None

    @property
    def targets(self) -> set[str]:
        """All new names."""
        return {new for pairs in (*(pairs for _, pairs in self.recorded), self.given) for new in pairs.values()}

    def before(self, node_id: str, sequence: int) -> str:
        """Apply the recorded maps alone to the id of a record; `sequence` is its number."""
        for upto, pairs in self.recorded:
            if sequence < upto:
                node_id = _renamed(node_id, pairs)
        return node_id

    def now(self, node_id: str, sequence: int) -> str:
        """Return the id that a record's node has now; `sequence` is the record's number."""
        return self.becoming(self.before(node_id, sequence))

    def becoming(self, node_id: str) -> str:
        """Apply the map that is given now, and no recorded one, to an id."""
        return _renamed(node_id, self.given)

    def sources(self, node_id: str) -> list[tuple[str, int, int | None]]:
        """List the ids under which a node is recorded, each with the numbers after which and before which that is so."""
        spans: list[tuple[str, int, int | None]] = []
        names, before = _sources({node_id}, self.given), None
        for upto, pairs in reversed(self.recorded):
            spans += [(name, upto, before) for name in names]
            names, before = _sources(names, pairs), upto
        return [*spans, *((name, -1, before) for name in names)]


def _renamed(node_id: str, pairs: Pairs) -> str:
    """Apply one map, which may rename the id itself or what it is part of. The longest old name that fits counts."""
    for old in sorted(pairs, key=len, reverse=True):
        if node_id == old or node_id.startswith(f"{old}/"):
            return pairs[old] + node_id[len(old) :]
    return node_id


def _sources(node_ids: Iterable[str], pairs: Pairs) -> set[str]:
    """Return the ids that a map turns into one of `node_ids`."""
    found: set[str] = set()
    for node_id in node_ids:
        possible = {node_id, *(old + node_id[len(new) :] for old, new in pairs.items() if _is_in(node_id, new))}
        found |= {name for name in possible if _renamed(name, pairs) == node_id}
    return found


def _is_in(node_id: str, outer: str) -> bool:
    return node_id == outer or node_id.startswith(f"{outer}/")
