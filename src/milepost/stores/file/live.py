"""Live events of a file store: a file for each run, to which they are appended without syncs.

Each line is one event, or a note that all up to a place are forgotten. Readers read from the end, as far as they need.
A line that a dying process left half written is passed over.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from milepost.model.live import MOST_BYTES, LiveBatch, LiveEvent, Place
from milepost.model.record import NOT_JSON
from milepost.stores.base.folders import is_folder, make_folder
from milepost.stores.base.live import beyond
from milepost.stores.file.fs import open_regular, place_of

_LARGEST = 64 * MOST_BYTES
"""Size in bytes of the largest file that is read."""
_REWRITTEN = 4 * MOST_BYTES
"""Size in bytes from which on a file is written anew without what is forgotten."""
_BLOCK = 64 * 1024
_FORGOTTEN = b"<"
"""The first byte of a line that says up to which place events are forgotten."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(LiveEvent).decode
_decode_place = msgspec.json.Decoder(Place).decode


class LiveFolder:
    """The folder of live events at `path`; it is made when the first event is kept."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()

    def put(self, batches: Sequence[LiveBatch]) -> None:
        """Keep the events of `batches`."""
        if not is_folder(self._path):
            make_folder(self._path)
        for run_id, events, forgotten in batches:
            lines = [_encode(event) for event in events]
            if forgotten[1]:
                lines.append(_FORGOTTEN + _encode(forgotten))
            # The line before may have been left half written.
            data = b"\n%s\n" % b"\n".join(lines)
            path = self._file(run_id)
            with self._lock:
                size = _append(path, data)
                if forgotten[1] and size > _REWRITTEN:
                    self._rewrite(path)

    def get(self, run_id: str, after: Place, limit: int) -> list[LiveEvent]:
        """Return events above `after`."""
        try:
            return _read(self._file(run_id), after)[:limit]
        except OSError:  # somebody has put something else there
            return []

    def sweep(self, before: float, most_bytes: int) -> None:
        """Delete the files of runs without new events."""
        sizes: dict[str, tuple[float, int]] = {}
        if is_folder(self._path):
            for entry in os.scandir(self._path):
                newest = _newest(entry.path)
                if newest is None or newest.time < before:
                    self._unlink(entry.path)
                else:
                    sizes[entry.path] = newest.time, entry.stat(follow_symlinks=False).st_size
        for path in beyond(sizes, most_bytes):
            self._unlink(path)

    def drop(self, run_id: str) -> None:
        """Delete the events of a run."""
        if is_folder(self._path):
            self._unlink(self._file(run_id))

    def after_fork(self) -> None:
        """Go on in the child of a fork."""
        self._lock = threading.Lock()

    def _file(self, run_id: str) -> str:
        return f"{self._path}/{place_of(run_id)}"

    def _unlink(self, path: str) -> None:
        with suppress(FileNotFoundError, IsADirectoryError, PermissionError):
            os.unlink(path)

    def _rewrite(self, path: str) -> None:
        """Write a file anew with what is not forgotten. Nobody else writes it but an owner that was fenced off."""
        made = f"{path}.{os.getpid()}.new"
        lines = [_encode(event) for event in _read(path, (0, 0))]
        self._unlink(made)
        _append(made, b"\n%s\n" % b"\n".join(lines))
        os.replace(made, path)


def _append(path: str, data: bytes) -> int:
    """Append to a file, and return its size."""
    descriptor = open_regular(path, _LARGEST, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _read(path: str, after: Place) -> list[LiveEvent]:
    """Return the events of a file above `after`, in order. They are read from the end."""
    found: dict[Place, LiveEvent] = {}
    for line in _lines_from_end(path):
        try:
            if line.startswith(_FORGOTTEN):
                after = max(after, _decode_place(line[1:]))
                continue
            event = _decode(line)
        except NOT_JSON:
            continue
        if event.place <= after:
            if event.epoch < after[0]:  # an earlier owner may have written it late
                continue
            break
        found.setdefault(event.place, event)
    return [found[place] for place in sorted(found)]


def _newest(path: str) -> LiveEvent | None:
    """Return the newest event of a file; None for none, and for what is no such file."""
    with suppress(OSError):
        for line in _lines_from_end(path):
            with suppress(*NOT_JSON):
                return _decode(line)
    return None


def _lines_from_end(path: str) -> Iterator[bytes]:
    """Yield the whole lines of a file, the last first; none if there is no file."""
    try:
        descriptor = open_regular(path, _LARGEST)
    except FileNotFoundError:
        return
    with open(descriptor, "rb") as file:
        end, rest, is_last = file.seek(0, os.SEEK_END), b"", True
        while end > 0:
            begin = max(0, end - _BLOCK)
            file.seek(begin)
            first, *lines = (file.read(end - begin) + rest).split(b"\n")
            if is_last and lines:
                lines.pop()  # what follows the last line end is not written whole
            is_last = is_last and not lines
            yield from (line for line in reversed(lines) if line)
            rest, end = first, begin
        if rest and not is_last:
            yield rest
