"""The origin of a forked run, from its start record: the run that it is a copy of, and the last record that was copied.

Copied visits keep the random numbers, UUIDs and keys that they drew in the run that made them. Later visits draw the
fork's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["FORKED_FROM", "Origin", "origins_of", "source_of"]

FORKED_FROM = "milepost.forked_from"
"""The tag of a fork: `<run id>#<sequence>` of its origin."""


class Origin(NamedTuple):
    """The run that a fork was made from, and the last of its records that was copied."""

    run_id: str
    sequence: int


def origins_of(begun: Mapping[str, Any]) -> tuple[Origin, ...]:
    """List the runs that a run was forked from, by its start record's fields: the nearest first, () for no fork."""
    found = []
    told = begun.get("origin")
    while isinstance(told, Mapping):
        found.append(Origin(str(told.get("run_id")), int(told.get("sequence") or 0)))
        told = told.get("origin")
    return tuple(found)


def source_of(origins: tuple[Origin, ...], sequence: int) -> str | None:
    """Return the id of the run that made the record numbered `sequence`; None: the run that has it made it itself."""
    source = None
    for origin in origins:
        if sequence <= origin.sequence:
            source = origin.run_id
    return source
