"""The live ranges of a journal: they say which of its records count.

Records are never changed. A run that goes back, such as by `resume_from`, leaves its records where they are and
records, with its next claim, which ranges of numbers are live from then on. A record outside of all ranges is
superseded. A journal without ranges has gone forward only, and every record of it is live.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from milepost.model.record import OWNER, Record

MOST = 2**62
"""A number above all numbers of a run. It is half of what a database column can hold, so later numbers fit too."""

Count = Annotated[int, msgspec.Meta(ge=0, lt=MOST)]
"""A number in a run's row."""

Ranges = tuple[tuple[str, Count, Count | None], ...]
"""The live ranges of a journal: (branch, first sequence, last sequence or None for open). Empty: all is live."""


def is_live(sequence: int, live: Ranges) -> bool:
    """Return whether the record with this number counts, that is, is not superseded."""
    return not live or any(first <= sequence and (last is None or sequence <= last) for _, first, last in live)


def ranges_upto(live: Ranges, upto: int) -> Ranges:
    """Return the live ranges without the numbers after `upto`."""
    if not live:
        return (("", 0, upto),)
    return tuple(
        (branch, first, upto if last is None else min(last, upto)) for branch, first, last in live if first <= upto
    )


def ranges_of(records: Sequence[Record]) -> Ranges:
    """Return the live ranges as the newest of these records that has some says."""
    for record in reversed(records):
        live = record.fields().get("live") if record.kind == OWNER else None
        if live is not None:
            return tuple((branch, first, last) for branch, first, last in live)
    return ()
