"""Beats of workers and pauses of schedules in a store: sealed or encrypted like its records.

A store has a `WorkerShelf`, the place where its backend keeps them. A beat is one statement apart from the journal, and is not
brought to the disk where the backend can do without. A pause is durable.
"""

from __future__ import annotations

import builtins
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from milepost.errors import StoreError
from milepost.model.live import LiveEvent
from milepost.model.record import NOT_JSON
from milepost.store import check_id
from milepost.stores.base.live import LiveStore

if TYPE_CHECKING:
    from milepost.model.workers import SchedulePause, WorkerInfo

_logger = logging.getLogger("milepost")

_SWEEP_SECONDS = 3600.0


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A beat or a pause as the backend keeps it: of which worker or schedule, its time (POSIX seconds), and its JSON."""

    name: str
    time: float
    body: bytes


class WorkerShelf(Protocol):
    """The place of a store's beats and pauses, each kind by name. All methods are thread-safe."""

    def put_beat(self, beat: Entry) -> None:
        """Keep a beat in place of the one before."""

    def beats(self) -> Iterable[Entry]:
        """Return all beats, old ones too."""

    def drop_beats(self, before: float) -> None:
        """Delete the beats from before a time."""

    def put_pause(self, pause: Entry) -> None:
        """Keep a pause in place of the one before, durably."""

    def pauses(self) -> Iterable[Entry]:
        """Return all pauses."""

    def drop_pause(self, name: str) -> None:
        """Delete a pause, durably."""


class WorkerStore(LiveStore):
    """A store that keeps beats and pauses if its backend gives it a shelf."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._worker_shelf: WorkerShelf | None = None
        self._beats_swept_at: float | None = None

    def _check_open(self) -> None:
        raise NotImplementedError

    def beat(self, info: WorkerInfo) -> None:
        shelf = self._shelf_to_change("beat")
        if shelf is None:
            return
        from milepost.model.workers import KEPT_SECONDS, encode

        now = self.clock.time()
        info = replace(info, beat=datetime.fromtimestamp(now, UTC))
        shelf.put_beat(self._kept_entry("worker", Entry(info.name, now, encode(info))))
        moment = self.clock.monotonic()
        if self._beats_swept_at is None or moment > self._beats_swept_at + _SWEEP_SECONDS:
            self._beats_swept_at = moment
            shelf.drop_beats(now - KEPT_SECONDS)

    def workers(self) -> tuple[WorkerInfo, ...] | None:
        self._check_open()
        if self._worker_shelf is None:
            return None
        from milepost.model.workers import KEPT_SECONDS, decode_worker

        oldest = self.clock.time() - KEPT_SECONDS
        beats = [beat for beat in self._worker_shelf.beats() if beat.time >= oldest]
        found = self._read_entries("worker", beats, decode_worker)
        if self.is_read_only and not found:  # nor could any worker beat here
            return None
        return tuple(sorted(found, key=lambda info: (info.started, info.name)))

    def pause_schedule(self, name: str, *, by: str | None = None) -> None:
        check_id(name, "schedule")
        if by is not None:
            check_id(by, "by")
        shelf = self._shelf_to_change("pause_schedule")
        if shelf is None:
            super().pause_schedule(name, by=by)
            return
        from milepost.model.workers import SchedulePause, encode

        now = self.clock.time()
        pause = SchedulePause(name, datetime.fromtimestamp(now, UTC), by)
        shelf.put_pause(self._kept_entry("schedule", Entry(name, now, encode(pause))))
        _logger.info("schedule %r of %s is paused%s", name, self.place, f" by {by!r}" if by else "")

    def resume_schedule(self, name: str, *, by: str | None = None) -> None:
        check_id(name, "schedule")
        if by is not None:
            check_id(by, "by")
        shelf = self._shelf_to_change("resume_schedule")
        if shelf is None:
            super().resume_schedule(name, by=by)
            return
        shelf.drop_pause(name)
        _logger.info("schedule %r of %s goes on%s", name, self.place, f", by {by!r}" if by else "")

    def paused_schedules(self) -> Mapping[str, SchedulePause]:
        self._check_open()
        if self._worker_shelf is None:
            return {}
        from milepost.model.workers import SchedulePause, decode_pause

        entries = sorted(self._worker_shelf.pauses(), key=lambda entry: entry.name)
        # A pause that can't be proven counts all the same: whoever could forge one could as well delete it.
        pauses = {entry.name: SchedulePause(entry.name, datetime.fromtimestamp(entry.time, UTC)) for entry in entries}
        pauses.update((pause.name, pause) for pause in self._read_entries("schedule", entries, decode_pause))
        return pauses

    def _shelf_to_change(self, op: str) -> WorkerShelf | None:
        self._check_open()
        if self.is_read_only:
            raise StoreError(
                f"the store {self.place} is opened to read only, and can't {op.replace('_', ' ')}: open it without read_only",
                store=self.place,
                op=op,
            )
        return self._worker_shelf

    def _kept_entry(self, kind: str, entry: Entry) -> Entry:
        """Seal or encrypt what an entry says; its name and its time stay readable."""
        if self._keeper is None:
            return entry
        return msgspec.structs.replace(entry, body=self._keeper.keep_live(entry.name, _event(kind, entry)).body)

    def _read_entries(self, kind: str, entries: Iterable[Entry], decode: Callable[[bytes], Any]) -> builtins.list[Any]:
        """Read what entries say, without those that are damaged or were changed by somebody without the store's keys."""
        found = []
        for entry in entries:
            opened: LiveEvent | None = _event(kind, entry)
            if self._keeper is not None:
                opened = self._keeper.opened_live(entry.name, _event(kind, entry))
            try:
                info = None if opened is None else decode(opened.body)
            except NOT_JSON:
                continue
            if info is not None and info.name == entry.name:
                found.append(info)
        return found


def _event(kind: str, entry: Entry) -> LiveEvent:
    """Return an entry as a live event, which is sealed in the same way; those of runs have other numbers."""
    return LiveEvent(0, 0, 0, entry.time, kind, 0, 0, entry.body)


class MemoryWorkerShelf:
    """Beats and pauses in this process's memory."""

    def __init__(self) -> None:
        self._beats: dict[str, Entry] = {}
        self._pauses: dict[str, Entry] = {}
        self._lock = threading.Lock()

    def put_beat(self, beat: Entry) -> None:
        """Keep a beat."""
        with self._lock:
            self._beats[beat.name] = beat

    def beats(self) -> builtins.list[Entry]:
        """Return all beats."""
        with self._lock:
            return [*self._beats.values()]

    def drop_beats(self, before: float) -> None:
        """Delete old beats."""
        with self._lock:
            self._beats = {name: beat for name, beat in self._beats.items() if beat.time >= before}

    def put_pause(self, pause: Entry) -> None:
        """Keep a pause."""
        with self._lock:
            self._pauses[pause.name] = pause

    def pauses(self) -> builtins.list[Entry]:
        """Return all pauses."""
        with self._lock:
            return [*self._pauses.values()]

    def drop_pause(self, name: str) -> None:
        """Delete a pause."""
        with self._lock:
            self._pauses.pop(name, None)


_PUT = (
    "INSERT INTO {} (name, time, body) VALUES (?, ?, ?) "
    "ON CONFLICT (name) DO UPDATE SET time = excluded.time, body = excluded.body"
)
_GET = "SELECT name, time, body FROM {}"

Execute = Callable[[str, str, Sequence[Any]], "builtins.list[Any]"]
"""A function that executes a statement of its own for an operation, and returns its rows."""


class WorkerTables:
    """Beats and pauses in the tables `workers` and `paused_schedules` of a database with SQL."""

    def __init__(
        self, of_beats: Execute, of_pauses: Execute, workers: str = "workers", schedules: str = "paused_schedules"
    ) -> None:
        self._of_beats, self._of_pauses = of_beats, of_pauses
        self._workers, self._schedules = workers, schedules

    def put_beat(self, beat: Entry) -> None:
        """Keep a beat."""
        self._of_beats("beat", _PUT.format(self._workers), msgspec.structs.astuple(beat))

    def beats(self) -> builtins.list[Entry]:
        """Return all beats."""
        return [Entry(*values) for values in self._of_beats("workers", _GET.format(self._workers), ())]

    def drop_beats(self, before: float) -> None:
        """Delete old beats."""
        self._of_beats("beat", f"DELETE FROM {self._workers} WHERE time < ?", (before,))  # noqa: S608

    def put_pause(self, pause: Entry) -> None:
        """Keep a pause."""
        self._of_pauses("pause_schedule", _PUT.format(self._schedules), msgspec.structs.astuple(pause))

    def pauses(self) -> builtins.list[Entry]:
        """Return all pauses."""
        return [Entry(*values) for values in self._of_pauses("paused_schedules", _GET.format(self._schedules), ())]

    def drop_pause(self, name: str) -> None:
        """Delete a pause."""
        self._of_pauses("resume_schedule", f"DELETE FROM {self._schedules} WHERE name = ?", (name,))  # noqa: S608
