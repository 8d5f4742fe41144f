"""Live events: what a run says on its way and does not record, as stores keep it for readers in other processes.

A live event has a number in its epoch, from 1 without a gap, so that a reader notices each one that was lost. It says
which record it follows. A record says how many live events of its epoch came before it (header field `live`, left out
for none), so that a reader can put both in one order.

Stores keep the newest live events of a run for a short time. They are no part of the journal: losing them loses nothing
of the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from milepost.model.events import Emitted, NodeOverdue, Progress, UnrecordedEvent

MOST_EVENTS = 10_000
MOST_BYTES = 1_000_000
"""The newest events of a run that are kept: this many, or this many bytes of bodies, whichever is less."""
MOST_BYTES_OF_STORE = 64_000_000
"""Size in bytes of all live events of a store, above which the oldest are deleted."""
KEPT_SECONDS = 600.0
"""Seconds for which a live event is kept."""
LARGEST_DATA = 256_000
"""Size in bytes of the largest data that is carried to readers elsewhere."""
_LONGEST_TEXT = 10_000

Place = tuple[int, int]
"""An epoch and a number in it: the place of a live event among all live events of its run."""

_KINDS: dict[str, type[UnrecordedEvent]] = {kind.__name__: kind for kind in (Emitted, Progress, NodeOverdue)}


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


# -- From an event to its stored form, and back ----------------------------------------------------


def body_of(kind: type[UnrecordedEvent], said: Mapping[str, Any]) -> bytes:
    """Return as JSON what an event of this kind says. What the caller changes later does not change it.

    Data that cannot be carried is left out; `omitted` says why.
    """
    told = {"event": kind.__name__, **said}
    data = told.get("data")
    if type(data) is not str or len(data) <= _LONGEST_TEXT:
        try:
            body = _encode(told)
        except Exception:  # it may come from the data's own code
            return _body_of_parts(told)
        if len(body) <= _LONGEST_TEXT:  # so no text in it is longer
            return body
    return _body_of_parts(told)


def _body_of_parts(told: dict[str, Any]) -> bytes:
    """Return the JSON of an event that is large or no JSON: each part of it is cut or left out by itself."""
    told |= {key: _text(told[key]) for key in ("name", "message") if key in told}
    try:
        if "data" in told:
            told |= _carried(told.pop("data"))
        return _encode(told)
    except (TypeError, ValueError, OverflowError) as exc:
        omitted = _text(f"it is no JSON: {exc}")
        return _encode({"event": "Emitted", "name": told.get("name", "progress"), "omitted": omitted})


def _carried(data: Any) -> dict[str, Any]:
    """Return the encoded data, or the reason why it is left out, by the name of its field."""
    encoded, size = b"", len(data) if type(data) is str else 0
    if size <= LARGEST_DATA:
        try:
            encoded = _encode(data)
        except Exception as exc:  # it may come from the data's own code
            return {"omitted": _text(f"it is no JSON: {str(exc) or type(exc).__name__}"[:500])}
        size = len(encoded)
    if size > LARGEST_DATA:
        return {"omitted": f"it is too large: {size} bytes, and at most {LARGEST_DATA} are carried"}
    return {"data": msgspec.Raw(encoded)}


def _plain(value: Any) -> Any:
    """Turn a value that msgspec does not know into one that it does."""
    dump = getattr(value, "model_dump", None)  # of pydantic
    if callable(dump) and not isinstance(value, type):
        return dump()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__qualname__} cannot be encoded")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def _text(text: Any) -> str:
    """Return a text that JSON can hold, not longer than a message may be."""
    return str(text)[:_LONGEST_TEXT].encode("utf-8", "backslashreplace").decode()


def event_of(run_id: str, live: LiveEvent, sequence: int) -> UnrecordedEvent | None:
    """Return the event of a stored form, which follows record `sequence`; None if this release cannot read it."""
    try:
        told = _decode(live.body)
        return _KINDS[told.pop("event")](
            run_id=run_id,
            timestamp=live.time,
            sequence=sequence,
            node_id=live.node_id,
            visit=live.visit,
            attempt=live.attempt,
            epoch=live.epoch,
            number=live.number,
            **told,
        )
    except (msgspec.MsgspecError, KeyError, TypeError, UnicodeDecodeError):
        return None


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
