"""Of which run a forked one is a copy, and up to where: what its start record says.

The visits that were copied keep what they drew in the run that they were made in: random numbers, UUIDs and keys. Those
after them are the fork's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["FORKED_FROM", "Origin", "origins_of", "source_of"]

FORKED_FROM = "milepost.forked_from"
"""The tag of a fork: `<run id>#<sequence>` of what it was made from."""


class Origin(NamedTuple):
    """The run that a fork was made from, and the last of its records that was copied."""

    run_id: str
    sequence: int


def origins_of(begun: Mapping[str, Any]) -> tuple[Origin, ...]:
    """The runs that a run was forked from, by the fields of its start record: the nearest first, () for no fork."""
    found = []
    told = begun.get("origin")
    while isinstance(told, Mapping):
        found.append(Origin(str(told.get("run_id")), int(told.get("sequence") or 0)))
        told = told.get("origin")
    return tuple(found)


def source_of(origins: tuple[Origin, ...], sequence: int) -> str | None:
    """The run in which a record of that number was made, before it was copied; None: in the run that has it."""
    source = None
    for origin in origins:
        if sequence <= origin.sequence:
            source = origin.run_id
    return source
