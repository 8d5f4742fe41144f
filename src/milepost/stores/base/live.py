"""Live events in a store: sealed or encrypted like its records, bounded, and deleted after a while.

A store has a `LiveShelf`, the place where its backend keeps them. It is apart from the journal: no lock of the journal is
taken for live events, and what happens to them never harms a run.
"""

from __future__ import annotations

import builtins
import logging
import threading
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from milepost.errors import StoreClosedError
from milepost.model.failure import describe
from milepost.model.live import KEPT_SECONDS, MOST_BYTES_OF_STORE, LiveBatch, LiveEvent, Place
from milepost.store import MOST, Store, check_number, check_run_id

if TYPE_CHECKING:
    from milepost.stores.base.encryption import RecordCipher

_logger = logging.getLogger("milepost")

_SWEEP_SECONDS = 60.0
_SWEEP_BYTES = MOST_BYTES_OF_STORE // 8
"""After so many seconds, or so many bytes, old events are deleted again."""
_place = attrgetter("place")


class LiveShelf(Protocol):
    """The place of a store's live events. All methods are thread-safe."""

    def put(self, batches: Sequence[LiveBatch]) -> None:
        """Keep the events of `batches`, and delete what they say is forgotten."""

    def get(self, run_id: str, after: Place, limit: int) -> list[LiveEvent]:
        """Return up to `limit` events above `after`, in order."""

    def sweep(self, before: float, most_bytes: int) -> None:
        """Delete events from before a time (POSIX seconds), and the oldest ones beyond a size of all bodies."""

    def drop(self, run_id: str) -> None:
        """Delete the events of a run."""


class LiveStore(Store):
    """A store that keeps live events if its backend gives it a shelf."""

    _keeper: RecordCipher | None
    _is_closed: bool

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._shelf: LiveShelf | None = None
        self._live_swept_at = 0.0
        self._put_since = 0

    def _keep_live_in(self, shelf: LiveShelf) -> None:
        """Keep live events in `shelf` from now on; old ones in it are deleted."""
        self._shelf, self.keeps_live = shelf, True
        if not self.is_read_only:
            self._sweep_live()

    def write_live(self, batches: Sequence[LiveBatch]) -> None:
        if self._is_closed:
            raise StoreClosedError(f"the store {self.place} is closed: open it again to use it")
        if self._shelf is None:
            return
        kept = batches
        if self._keeper is not None:
            keep = self._keeper.keep_live
            kept = [
                batch._replace(events=tuple([keep(batch.run_id, event) for event in batch.events])) for batch in batches
            ]
        self._shelf.put(kept)
        self._put_since += sum(len(event.body) for batch in kept for event in batch.events)
        if self._put_since > _SWEEP_BYTES or self.clock.monotonic() > self._live_swept_at + _SWEEP_SECONDS:
            self._sweep_live()

    def read_live(self, run_id: str, *, after: Place = (0, 0), limit: int = 1000) -> builtins.list[LiveEvent]:
        check_run_id(run_id)
        limit = min(check_number(limit, "limit", least=1), MOST)
        if self._is_closed:
            raise StoreClosedError(f"the store {self.place} is closed: open it again to use it")
        if self._shelf is None:
            return []
        events = self._shelf.get(run_id, after, limit)
        if self._keeper is None:
            return events
        opened = [self._keeper.opened_live(run_id, event) for event in events]
        return [event for event in opened if event is not None]

    def _sweep_live(self) -> None:
        self._live_swept_at, self._put_since = self.clock.monotonic(), 0
        try:
            if self._shelf is not None:
                self._shelf.sweep(self.clock.time() - KEPT_SECONDS, MOST_BYTES_OF_STORE)
        except Exception as exc:
            _logger.warning("old live events stay in %s: %s", self.place, describe(exc))

    def _drop_live(self, run_id: str) -> None:
        """Delete the live events of a run that was deleted, also those that wait in this process."""
        try:
            self.flush_live()
            if self._shelf is not None:
                self._shelf.drop(run_id)
        except Exception as exc:
            _logger.warning(
                "live events of the deleted run %r stay in %s: %s",
                run_id,
                self.place,
                describe(exc),
                extra={"run_id": run_id},
            )


class MemoryShelf:
    """Live events in this process's memory."""

    def __init__(self) -> None:
        self._runs: dict[str, list[LiveEvent]] = {}
        self._lock = threading.Lock()

    def put(self, batches: Sequence[LiveBatch]) -> None:
        """Keep the events of `batches`."""
        with self._lock:
            for run_id, events, forgotten in batches:
                kept = self._runs.setdefault(run_id, [])
                if kept and events and kept[-1].place >= events[0].place:
                    new = {event.place for event in events}
                    kept = sorted([e for e in kept if e.place not in new] + [*events], key=_place)
                else:
                    kept.extend(events)
                if forgotten[1]:
                    del kept[: bisect_right(kept, forgotten, key=_place)]
                self._runs[run_id] = kept

    def get(self, run_id: str, after: Place, limit: int) -> list[LiveEvent]:
        """Return events above `after`."""
        with self._lock:
            kept = self._runs.get(run_id, [])
            first = bisect_right(kept, after, key=_place)
            return kept[first : first + limit]

    def sweep(self, before: float, most_bytes: int) -> None:
        """Delete old events."""
        with self._lock:
            for run_id, kept in [*self._runs.items()]:
                fresh = [event for event in kept if event.time >= before]
                if fresh:
                    self._runs[run_id] = fresh
                else:
                    del self._runs[run_id]
            for run_id in beyond({name: _size_of(kept) for name, kept in self._runs.items()}, most_bytes):
                del self._runs[run_id]

    def drop(self, run_id: str) -> None:
        """Delete the events of a run."""
        with self._lock:
            self._runs.pop(run_id, None)


def _size_of(kept: list[LiveEvent]) -> tuple[float, int]:
    return kept[-1].time, sum(len(event.body) for event in kept)


def beyond(sizes: dict[str, tuple[float, int]], most_bytes: int) -> list[str]:
    """Return the names that are to go so that the others have at most `most_bytes`, the oldest first.

    `sizes` has the time and the size of each.
    """
    total = sum(size for _, size in sizes.values())
    gone = []
    for name in sorted(sizes, key=lambda name: sizes[name]):
        if total <= most_bytes:
            break
        total -= sizes[name][1]
        gone.append(name)
    return gone
