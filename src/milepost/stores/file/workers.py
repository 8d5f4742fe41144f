"""Beats and pauses of a file store: a file for each, beside the runs. A beat that can't be read is passed over."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress

import msgspec

from milepost.model.record import NOT_JSON
from milepost.stores.base.folders import is_folder, make_folder, sync_folder
from milepost.stores.base.workers import Entry
from milepost.stores.file.fs import Files, place_of, read_regular

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Entry).decode


class WorkerFolder:
    """The folders `workers` and `schedules` below `own`; each is made when something is put into it.

    `failing_as` turns errors of the file system into the store's, for an operation.
    """

    def __init__(self, own: str, files: Files, failing_as: Callable[[str], AbstractContextManager[None]]) -> None:
        self._workers, self._schedules = f"{own}/workers", f"{own}/schedules"
        self._files = files
        self._failing_as = failing_as

    def put_beat(self, beat: Entry) -> None:
        """Keep a beat."""
        with self._failing_as("beat"):
            self._put(self._workers, beat, is_durable=False)

    def beats(self) -> Iterator[Entry]:
        """Yield all beats."""
        with self._failing_as("workers"):
            yield from _entries(self._workers, OSError)

    def drop_beats(self, before: float) -> None:
        """Delete old beats."""
        for beat in self.beats():
            if beat.time < before and is_folder(self._workers):
                with suppress(OSError):
                    os.unlink(f"{self._workers}/{place_of(beat.name)}")

    def put_pause(self, pause: Entry) -> None:
        """Keep a pause."""
        with self._failing_as("pause_schedule"):
            self._put(self._schedules, pause, is_durable=True)
            sync_folder(self._schedules)

    def pauses(self) -> Iterator[Entry]:
        """Yield all pauses."""
        with self._failing_as("paused_schedules"):
            yield from _entries(self._schedules, FileNotFoundError)

    def drop_pause(self, name: str) -> None:
        """Delete a pause."""
        with self._failing_as("resume_schedule"), suppress(FileNotFoundError):
            if is_folder(self._schedules):
                os.unlink(f"{self._schedules}/{place_of(name)}")
                sync_folder(self._schedules)

    def _put(self, folder: str, entry: Entry, *, is_durable: bool) -> None:
        if not is_folder(folder):
            make_folder(folder)
        made = self._files.write(_encode(entry), is_durable=is_durable)
        try:
            os.replace(made, f"{folder}/{place_of(entry.name)}")
        except BaseException:
            self._files.discard(made)
            raise


def _entries(folder: str, passed_over: type[OSError]) -> Iterator[Entry]:
    """Yield what stands in the files of a folder; nothing if there is none. Files that fail so are passed over."""
    with suppress(FileNotFoundError):
        for name in sorted(os.listdir(folder)):
            with suppress(passed_over, *NOT_JSON):
                entry = _decode(read_regular(f"{folder}/{name}"))
                if place_of(entry.name) == name:
                    yield entry
