"""A follower of one run: its records and its live events, in one order, while it goes on somewhere.

What a record tells comes from the record alone. A live event is told before the first record that counts it. If such a
record is there and the event is not, the follower waits for it, at most a second after it has seen the record, and then
tells how many it has missed.
"""

from __future__ import annotations

from functools import partial

from milepost.drivers.live import LiveSignal
from milepost.engine.watching import tell_ends
from milepost.errors import CheckpointCorruptError
from milepost.executor.chronicle import Chronicle
from milepost.executor.effects import Routine, Sleep, ask
from milepost.executor.resume import await_change
from milepost.executor.run import Run
from milepost.model.events import Event
from milepost.model.lifecycle import EventsMissed
from milepost.model.live import LiveEvent, LiveOrder, Missed, Place
from milepost.model.live_bodies import event_of
from milepost.model.record import START, Record, origins_of, parse_time
from milepost.store import ENDED, RunRow

PAGE = 100
"""The number of records that a follower reads at once."""
_LIVE_PAGE = 1000
_LIVE_POLL = 0.1
"""Seconds between two looks at the live events of a run in another process."""
_LATE_SECONDS = 1.0
"""Seconds for which late live events are waited for."""
_INSTANT = 1e-4
"""Seconds that are not worth a wait; a clock need not be exact enough for less."""
_OLD_SECONDS = 60.0
"""The age in seconds from which on a record's live events are not waited for: they are there, or they are gone."""


class Follower:
    """A reader of one run from the record after number `after` on. `chronicle` will tell the records that it gives."""

    def __init__(self, chronicle: Chronicle, after: int, signal: LiveSignal) -> None:
        self._chronicle = chronicle
        self._after = after
        self._signal = signal
        self._order: LiveOrder | None = None
        self._copied: int | None = None
        """The number up to which records are copies from another run, -1 for none; None: not known yet."""

    def look(self, run: Run) -> Routine[tuple[list[Record | Event], bool]]:
        """Wait for something new; return it in order, and whether the run has ended and this is the last of it."""
        run.checked = self._after  # the reader checks what it reads
        if self._order is None:
            self._order = LiveOrder((yield from self._beginning(run)))
        while True:
            yield from self._read_live(run, self._order)
            row: RunRow = yield from ask(run.store, "get_run", run.run_id)
            records: list[Record] = yield from ask(run.store, "read", run.run_id, after=self._after, limit=PAGE)
            news = yield from self._merged(run, self._order, records)
            if news or row.status in ENDED:
                yield from tell_ends(run, records, self._chronicle)
                return news, row.status in ENDED and len(records) < PAGE
            yield from await_change(run, partial(self._wait, run, self._order))

    def _beginning(self, run: Run) -> Routine[Place | None]:
        """Return the place of the last live event before the records that are read; None if it is not known."""
        if self._after <= 0 or not run.store.keeps_live:
            return 0, 0
        records = yield from ask(run.store, "read", run.run_id, after=self._after - 1, before=self._after + 1)
        return _place_before(records[0]) if records else None

    def _wait(self, run: Run, order: LiveOrder, seconds: float) -> Routine[None]:
        """Wait for live events, no longer than `seconds`."""
        clock = run.options.clock
        ends = clock.monotonic() + seconds
        while (left := ends - clock.monotonic()) > _INSTANT:
            yield Sleep(min(left, _LIVE_POLL) if run.store.keeps_live else left, self._signal)
            if (yield from self._read_live(run, order)):
                return

    def _read_live(self, run: Run, order: LiveOrder) -> Routine[bool]:
        """Read the live events that are new; return whether there are some."""
        self._signal.clear()
        is_new = False
        while run.store.keeps_live:
            events: list[LiveEvent]
            events = yield from ask(run.store, "read_live", run.run_id, after=order.newest, limit=_LIVE_PAGE)
            order.take(events)
            is_new = is_new or bool(events)
            if len(events) < _LIVE_PAGE:
                break
        return is_new

    def _merged(self, run: Run, order: LiveOrder, records: list[Record]) -> Routine[list[Record | Event]]:
        """Put records and live events into one order."""
        merged: list[Record | Event] = []
        late = run.options.clock.monotonic() + _LATE_SECONDS
        for record in records:
            place = _place_before(record) if run.store.keeps_live else None
            if place is not None and place[1] and (yield from self._is_copy(run, record)):
                order.skip(place)
            elif place is not None and order.lacks(place) and not _is_old(run, record):
                yield from self._await_late(run, order, place, late)
            if place is not None:
                merged += [self._event(run, live) for live in order.before(place)]
            merged.append(record)
            self._after = record.sequence
        merged += [self._event(run, live) for live in order.after(self._after)]
        return merged

    def _await_late(self, run: Run, order: LiveOrder, place: Place, late: float) -> Routine[None]:
        """Wait until all live events up to `place` are read, or until the time `late`."""
        clock = run.options.clock
        while order.lacks(place) and (left := late - clock.monotonic()) > _INSTANT:
            if not (yield from self._read_live(run, order)):
                yield Sleep(min(left, _LIVE_POLL), self._signal)

    def _is_copy(self, run: Run, record: Record) -> Routine[bool]:
        """Return whether a record is a copy of another run's: the live events that it counts are those of that run."""
        if self._copied is None:
            started = yield from ask(run.store, "read", run.run_id, limit=1, kinds=(START,))
            origins = origins_of(started[0].fields()) if started else ()
            self._copied = max((origin.sequence for origin in origins), default=-1)
        return record.sequence <= self._copied

    def _event(self, run: Run, live: LiveEvent | Missed) -> Event:
        event = None if isinstance(live, Missed) else event_of(run.run_id, live, self._after)
        if event is not None:
            return event
        count = live.missed if isinstance(live, Missed) else 1
        return EventsMissed(
            run_id=run.run_id,
            timestamp=run.options.clock.time(),
            sequence=self._after,
            count=count,
            epoch=live.epoch,
        )


def _place_before(record: Record) -> Place | None:
    """Return the place of the last live event before a record; None if the record does not say it."""
    try:
        fields = record.fields()
        epoch, count = fields.get("epoch"), fields.get("live")
    except CheckpointCorruptError:
        return None
    if not isinstance(epoch, int):
        return None
    return epoch, count if isinstance(count, int) else 0


def _is_old(run: Run, record: Record) -> bool:
    try:
        recorded = parse_time(record.fields()["timestamp"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return True
    return run.options.clock.time() - recorded > _OLD_SECONDS
