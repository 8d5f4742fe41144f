"""The ids that steps and nodes have now, by those under which they are recorded.

A map of new names counts for what was recorded before it was given. The owner record of the resume that gave it tells it, with
all maps before, so that later resumes know it by themselves; each record is read through the maps that came after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["Renames"]

Pairs = Mapping[str, str]


class Renames:
    """The maps that are recorded, the oldest first, each with the number of its record; then the one that is given now.

    What is given again, though it is recorded, is not given at all.
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
    def told_by(cls, fields: Mapping[str, Any] | None, given: Pairs | None) -> Renames:
        """The maps that an owner record tells of, by its header's fields, and the one that is given now."""
        told = (fields or {}).get("renames") or ()
        return cls(((int(sequence), pairs) for sequence, pairs in told), given)

    def told(self, sequence: int) -> list[list[Any]] | None:
        """What the owner record of that number tells; None for nothing."""
        maps = [*self.recorded, *([(sequence, self.given)] if self.given else [])]
        return [[number, dict(pairs)] for number, pairs in maps] or None

    @property
    def targets(self) -> set[str]:
        """All new names."""
        return {new for pairs in (*(pairs for _, pairs in self.recorded), self.given) for new in pairs.values()}

    def before(self, node_id: str, sequence: int) -> str:
        """The id that a record of that number has by what is recorded alone."""
        for upto, pairs in self.recorded:
            if sequence < upto:
                node_id = _renamed(node_id, pairs)
        return node_id

    def now(self, node_id: str, sequence: int) -> str:
        """The id that a record of that number has now."""
        return self.becoming(self.before(node_id, sequence))

    def becoming(self, node_id: str) -> str:
        """The id that a name which no map has reached yet has by the one that is given now."""
        return _renamed(node_id, self.given)

    def sources(self, node_id: str) -> list[tuple[str, int, int | None]]:
        """The ids under which records of a node stand, each with the numbers after which and before which that is so."""
        spans: list[tuple[str, int, int | None]] = []
        names, before = _sources({node_id}, self.given), None
        for upto, pairs in reversed(self.recorded):
            spans += [(name, upto, before) for name in names]
            names, before = _sources(names, pairs), upto
        return [*spans, *((name, -1, before) for name in names)]


def _renamed(node_id: str, pairs: Pairs) -> str:
    """The id that something has by a map: it, or what it is part of, may have another name. The longest that fits counts."""
    for old in sorted(pairs, key=len, reverse=True):
        if node_id == old or node_id.startswith(f"{old}/"):
            return pairs[old] + node_id[len(old) :]
    return node_id


def _sources(node_ids: Iterable[str], pairs: Pairs) -> set[str]:
    """The ids that a map makes one of these of."""
    found: set[str] = set()
    for node_id in node_ids:
        possible = {node_id, *(old + node_id[len(new) :] for old, new in pairs.items() if _is_in(node_id, new))}
        found |= {name for name in possible if _renamed(name, pairs) == node_id}
    return found


def _is_in(node_id: str, outer: str) -> bool:
    return node_id == outer or node_id.startswith(f"{outer}/")
