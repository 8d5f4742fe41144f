"""Live events: what a run says on its way and does not record, as stores keep it for readers in other processes.

A live event has a number in its epoch, from 1 without a gap, so that a reader notices each one that was lost. It says
which record it follows. A record says how many live events of its epoch came before it (header field `live`, left out
for none), so that a reader can put both in one order.

Stores keep the newest live events of a run for a short time. They are no part of the journal: losing them loses nothing
of the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

MOST_EVENTS = 10_000
MOST_BYTES = 1_000_000
"""The newest events of a run that are kept: this many, or this many bytes of bodies, whichever is less."""
MOST_BYTES_OF_STORE = 64_000_000
"""Size in bytes of all live events of a store, above which the oldest are deleted."""
KEPT_SECONDS = 600.0
"""Seconds for which a live event is kept."""

Place = tuple[int, int]
"""An epoch and a number in it: the place of a live event among all live events of its run."""


class LiveEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A live event of a run, as stores keep it."""

    epoch: int
    number: int
    """The number in the epoch, from 1."""
    after: int
    """The number of the record that the event follows."""
    time: float
    """POSIX seconds."""
    node_id: str
    visit: int
    attempt: int
    body: bytes
    """JSON of what the event says, or its encrypted form."""

    @property
    def place(self) -> Place:
        """The epoch and the number."""
        return self.epoch, self.number


class LiveBatch(NamedTuple):
    """Live events of one run, in order, to be kept; older ones up to `forgotten` may be deleted."""

    run_id: str
    events: tuple[LiveEvent, ...]
    forgotten: Place = (0, 0)


# -- The order of live events among the records of a run -------------------------------------------


class Missed(NamedTuple):
    """A number of live events that did not reach the reader, before the next thing that did."""

    missed: int
    epoch: int


class LiveOrder:
    """The live events of one run that a reader has, and their places among its records.

    `told` is the place of the newest one that was told or is known to be missed; None if the reader began after a
    record that is gone, so that it does not know what came before.
    """

    def __init__(self, told: Place | None) -> None:
        self._told = told
        self.newest: Place = told or (0, 0)
        """The place of the newest event that was read."""
        self._waiting: deque[LiveEvent] = deque()

    def take(self, events: Iterable[LiveEvent]) -> None:
        """Take events that were read, in order; those that came too late, or came before, are left out."""
        for event in events:
            if event.place > self.newest:
                self._waiting.append(event)
                self.newest = event.place

    def lacks(self, place: Place) -> bool:
        """Return whether an event that belongs before a record with this epoch and count was not read yet."""
        return place[1] > 0 and self._told is not None and self.newest < place

    def before(self, place: Place) -> list[LiveEvent | Missed]:
        """Return what to tell before the record with this epoch and count, in order."""
        epoch, count = place
        told = self._told_events(lambda event: event.place <= place)
        if self._told is None:
            self._told = place
        elif count and self._told < place:
            told.append(Missed(count - (self._told[1] if self._told[0] == epoch else 0), epoch))
            self._told = place
        self.newest = max(self.newest, self._told)
        return told

    def skip(self, place: Place) -> None:
        """Leave out all events up to `place`: they belong to another run, of which this one is a copy."""
        self._told = max(self._told or place, place)
        self.newest = max(self.newest, place)

    def after(self, sequence: int) -> list[LiveEvent | Missed]:
        """Return what to tell now that the records up to `sequence` were told."""
        return self._told_events(lambda event: event.after <= sequence)

    def _told_events(self, is_due: Callable[[LiveEvent], bool]) -> list[LiveEvent | Missed]:
        told: list[LiveEvent | Missed] = []
        while self._waiting and is_due(self._waiting[0]):
            event = self._waiting.popleft()
            if self._told is not None:
                expected = self._told[1] + 1 if self._told[0] == event.epoch else 1
                if event.number > expected:
                    told.append(Missed(event.number - expected, event.epoch))
            told.append(event)
            self._told = event.place
        return told
