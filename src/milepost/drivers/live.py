"""Live events on their way: one thread of this process writes those of all its runs, and wakes readers beside it.

A run only puts its events into a queue, so it never waits for a store. A full queue drops the oldest events of the run
that it takes a new one of; readers notice the gap in the numbers. A store that fails loses events, and never fails a run.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Thread

from milepost.errors import StoreClosedError
from milepost.model.failure import describe
from milepost.model.ids import in_forked_child
from milepost.model.live import KEPT_SECONDS, MOST_BYTES, MOST_EVENTS, LiveBatch, LiveEvent, Place
from milepost.store import Store

logger = logging.getLogger("milepost")

_MOST_QUEUED = 20_000
_MOST_BYTES_QUEUED = 64_000_000
_PAUSE = 0.08
"""Seconds between two writes, so that many events share one."""
_FLUSH_SECONDS = 1.0
"""Seconds that the end of the process, or of a store, waits for events to be written."""

_Run = tuple[Store, str]
"""A store and the id of a run in it."""


class LiveSignal:
    """A wake-up for a reader in this process, as a driver watches a lease while it sleeps."""

    is_lost = False
    is_draining = False
    is_ending = False

    def __init__(self) -> None:
        self.cancel: str | None = None
        self.is_over = False
        """True if something was written since `clear`."""
        self._lock = threading.Lock()
        self._watchers: list[Callable[[], None]] = []

    def clear(self) -> None:
        """Begin anew: what is written from now on counts."""
        self.is_over = False

    def tell(self) -> None:
        """Note that something was written."""
        with self._lock:
            self.is_over = True
            watchers, self._watchers = self._watchers, []
        for wake in watchers:
            wake()

    def watch(self, tell: Callable[[], None]) -> None:
        """Call `tell` once, when something is written; at once if that is so."""
        with self._lock:
            if not self.is_over:
                self._watchers.append(tell)
                return
        tell()

    def unwatch(self, tell: Callable[[], None]) -> None:
        """Do not call `tell` any more."""
        with self._lock:
            if tell in self._watchers:
                self._watchers.remove(tell)


class _KeptEvents:
    """The events of a run that its store keeps: their places and sizes, the oldest first."""

    def __init__(self, before: Sequence[LiveEvent]) -> None:
        # Numbers alone, one deque for each: an object for each event would wake the garbage collector.
        self._epochs: deque[int] = deque()
        self._numbers: deque[int] = deque()
        self._sizes: deque[int] = deque()
        self._size = 0
        self.newest: Place = (0, 0)
        self.written_at = 0.0
        self.forget_beyond(before)

    def forget_beyond(self, events: Sequence[LiveEvent]) -> Place:
        """Add events; return the place up to which older ones are beyond the bounds of a run."""
        sizes = [len(event.body) for event in events]
        self.newest = events[-1].place if events else self.newest
        self._epochs += [event.epoch for event in events]
        self._numbers += [event.number for event in events]
        self._sizes += sizes
        self._size += sum(sizes)
        forgotten = (0, 0)
        while len(self._sizes) > MOST_EVENTS or self._size > MOST_BYTES:
            forgotten = self._epochs.popleft(), self._numbers.popleft()
            self._size -= self._sizes.popleft()
        self.written_at = time.monotonic()
        return forgotten


class LiveWriter:
    """The thread that writes the live events of this process, the queue before it, and the readers to be woken."""

    def __init__(self) -> None:
        self._queue: defaultdict[_Run, deque[LiveEvent]] = defaultdict(deque)
        self._count = 0
        self._size = 0
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._awake = threading.Event()
        self._thread: Thread | None = None
        self._kept: weakref.WeakKeyDictionary[Store, dict[str, _KeptEvents]] = weakref.WeakKeyDictionary()
        self._failed: weakref.WeakSet[Store] = weakref.WeakSet()
        self._signals: dict[tuple[str, str], list[LiveSignal]] = {}
        self._tidied_at = 0.0

    # -- writing -------------------------------------------------------------------------------------

    def keep_in(self, store: Store, run_id: str) -> Callable[[LiveEvent], None]:
        """Return a function that puts a live event of a run into the queue."""
        store.flush_live = self.flush
        run = store, run_id

        def keep(event: LiveEvent) -> None:
            with self._lock:
                queue = self._queue[run]
                queue.append(event)
                self._count += 1
                self._size += len(event.body)
                while queue and (self._count > _MOST_QUEUED or self._size > _MOST_BYTES_QUEUED):
                    self._count -= 1
                    self._size -= len(queue.popleft().body)
            if not self._awake.is_set():
                self._awake.set()
                if self._thread is None:
                    self._start()

        return keep

    def flush(self, seconds: float = _FLUSH_SECONDS) -> None:
        """Wait until all that was in the queue is written, unless another write takes longer than `seconds`."""
        if self._writing.acquire(timeout=seconds):
            try:
                self._write_all()
            finally:
                self._writing.release()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                thread = Thread(target=self._run, name="milepost-live", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # there are too many, or the interpreter ends; the next event tries again
                    self._awake.clear()
                    return
                self._thread = thread

    def _run(self) -> None:
        while True:
            self._awake.wait()
            self._awake.clear()
            try:
                with self._writing:
                    self._write_all()
            except Exception:
                logger.exception("live events are lost")
            time.sleep(_PAUSE)

    def _write_all(self) -> None:
        with self._lock:
            queued, self._queue, self._count, self._size = self._queue, defaultdict(deque), 0, 0
        stores: dict[Store, dict[str, deque[LiveEvent]]] = {}
        for (store, run_id), events in queued.items():
            stores.setdefault(store, {})[run_id] = events
        for store, runs in stores.items():
            try:
                store.write_live([self._batch(store, run_id, events) for run_id, events in runs.items()])
            except StoreClosedError:
                continue
            except Exception as exc:
                if store not in self._failed:
                    self._failed.add(store)
                    logger.warning("live events of runs in %s are lost: %s", store.place, describe(exc))
                continue
            for run_id in runs:
                self._wake(store.place, run_id)
        self._tidy()

    def _batch(self, store: Store, run_id: str, events: Sequence[LiveEvent]) -> LiveBatch:
        runs = self._kept.setdefault(store, {})
        kept = runs.get(run_id)
        if kept is None or events[0].epoch != kept.newest[0] or events[0].place <= kept.newest:
            # Another process may have written events of earlier epochs; or the run is a new one under an old id.
            before = [] if events[0].place == (1, 1) else store.read_live(run_id, limit=MOST_EVENTS)
            kept = runs[run_id] = _KeptEvents(before)
        return LiveBatch(run_id, tuple(events), kept.forget_beyond(events))

    def _tidy(self) -> None:
        """Forget, once a minute, the runs whose events are gone by now."""
        now = time.monotonic()
        if now < self._tidied_at + 60:
            return
        self._tidied_at = now
        for runs in self._kept.values():
            for run_id in [run_id for run_id, kept in runs.items() if kept.written_at < now - KEPT_SECONDS]:
                del runs[run_id]

    # -- readers in this process -----------------------------------------------------------------------

    @contextmanager
    def signal(self, store: Store, run_id: str) -> Iterator[LiveSignal]:
        """Give a signal that is told whenever this process has written live events of a run, while the block lasts."""
        signal, key = LiveSignal(), (store.place, run_id)
        with self._lock:
            self._signals.setdefault(key, []).append(signal)
        try:
            yield signal
        finally:
            with self._lock:
                self._signals[key].remove(signal)
                if not self._signals[key]:
                    del self._signals[key]

    def _wake(self, place: str, run_id: str) -> None:
        with self._lock:
            signals = [*self._signals.get((place, run_id), ())]
        for signal in signals:
            signal.tell()


live_writer = LiveWriter()
"""The writer of this process."""
atexit.register(live_writer.flush)

# The child has neither the thread nor the right to write for runs of the parent.
in_forked_child(live_writer.__init__)  # type: ignore[misc]
