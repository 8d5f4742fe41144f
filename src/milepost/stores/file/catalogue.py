"""The catalogue of all runs, and those of them that are due.

The order comes from a listing of all runs' folders. The content of their `journal` files is remembered as long as
nothing in the folder has changed, so that only the first listing reads them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from milepost.stores.base.fence import Row
from milepost.stores.base.folders import is_folder, make_folder, sync_folder
from milepost.stores.base.transaction import DamagedRow
from milepost.stores.file.commit import ONE_FILE
from milepost.stores.file.fs import below, lock, open_in_place, place_of
from milepost.stores.file.log import JOURNAL, damaged_pointer, read_pointer

# -- The runs of a store in the order of their creation --------------------------------------------


_CUT = re.compile(r"[^~]{100}~[0-9a-f]{16}")
"""The name of a run's folder if its id is too long for a folder name."""
_NUMBER = re.compile(rb"[0-9a-f]{16}")
_SUFFIX_BITS = 32
"""The low bits of a position, which tell runs with the same number apart."""
_SETTLED = 2.0
"""Seconds after which a later change of a folder certainly has another time, however coarse the file system's times are."""


_MOST = 1 << 63
"""A limit above all numbers of new runs, which are nanoseconds since 1970 or a little more."""


class Listed(NamedTuple):
    """A run in the list; runs sort by their creation. `damage` says why its `journal` can't be read."""

    position: int
    run_id: str
    created_at: float
    damage: str = ""


class Catalogue:
    """The runs below `root`. The file `time`, which also serves to read the file system's time,
    holds the newest run's number."""

    def __init__(self, root: str, time: str) -> None:
        self._root = root
        self._known: dict[str, tuple[tuple[int, int], Listed]] = {}
        self._path = time
        self._newest = 0
        self._lock = threading.Lock()

    def next_number(self) -> int:
        """Return a number for a new run, above those of all earlier runs, whatever the clocks say."""
        with self._lock:
            number = time.time_ns()
            with suppress(OSError):  # the time alone is nearly always as good
                descriptor = open_in_place(self._path)
                try:
                    is_locked = lock(descriptor)
                    text = os.read(descriptor, 16)
                    newest = int(text, 16) if _NUMBER.fullmatch(text) else self._number_of_newest()
                    number = max(number, self._newest + 1, newest + 1 if newest < _MOST else 0)
                    if is_locked:
                        os.lseek(descriptor, 0, os.SEEK_SET)
                        os.write(descriptor, b"%016x" % number)
                finally:
                    os.close(descriptor)
            self._newest = number
            return number

    def _number_of_newest(self) -> int:
        return max((run.position >> _SUFFIX_BITS for run in self.runs()), default=0)

    def runs(self) -> list[Listed]:
        """List all runs, newest first."""
        known, settled = self._known, time.time() - _SETTLED
        found: dict[str, tuple[tuple[int, int], Listed]] = {}
        listed: list[Listed] = []
        with os.scandir(self._root) as entries:
            folders = [*entries]
        for entry in folders:
            if entry.name.startswith("."):
                continue
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue
            except OSError as exc:  # for example a link to itself in place of a run's folder
                damaged = _damaged(entry, f"{entry.path} can't be read ({exc.strerror})")
                listed += [] if damaged is None else [damaged]
                continue
            if not stat.S_ISDIR(status.st_mode):
                continue
            state = (status.st_mtime_ns, status.st_ino)
            remembered = known.get(entry.name)
            run = remembered[1] if remembered and remembered[0] == state else self._look(entry)
            if run is not None:
                listed.append(run)
                if status.st_mtime < settled and not run.damage:
                    found[entry.name] = (state, run)
        self._known = found
        listed.sort(reverse=True)
        return listed

    def _look(self, entry: os.DirEntry[str]) -> Listed | None:
        try:
            pointer = read_pointer(entry.path)
            if pointer is not None and place_of(pointer.run_id) != entry.name:
                raise damaged_pointer(f"{entry.path}/{JOURNAL}", f"it is of run {pointer.run_id!r}")
        except DamagedRow as exc:
            return _damaged(entry, str(exc))
        return None if pointer is None else Listed(_position(pointer.folder), pointer.run_id, pointer.created_at)


def _damaged(entry: os.DirEntry[str], why: str) -> Listed | None:
    """Return what is known of a damaged run; None if no run's folder has such a name."""
    run_id = unquote(entry.name.partition("~")[0])
    with suppress(UnicodeEncodeError):
        if _CUT.fullmatch(entry.name) or (run_id and place_of(run_id) == entry.name):
            # Below all other positions, and not at one that another run has.
            position = int.from_bytes(hashlib.sha256(entry.name.encode()).digest()[:4], "big")
            return Listed(position, run_id, 0.0, why)
    return None


def _position(folder: str) -> int:
    """Return the position in the order of creation of a run whose commits are in `folder`."""
    return int(folder.replace("-", ""), 16)


# Markers of the runs that a worker may have to look at, one for each, by flow, so that a poll need not read all
# runs.
#
# A marker is an empty file. It is written before the commit after which its run may be due, and removed after the commit
# after which it is not. Its name has the number of the first of these: a late process removes a marker of the past, never
# a newer one. So there may be a marker too many, which costs a look, and never one too few.


_logger = logging.getLogger("milepost")

_NAME = re.compile(r"(.+)\.([0-9a-f]+-[0-9a-f]+)\.([0-9]{12,})")

_STALE = 3600.0
"""Seconds after which the marker of a missing run can't belong to a run that is being created."""

_MOST_KNOWN = 1 << 16
"""Number of runs whose ids are remembered."""


class Marker(NamedTuple):
    """The parts of a marker's name: the run's place, its folder there, and the commit since which it may be due."""

    path: str
    place: str
    folder: str
    number: int


def may_be_due(row: Row) -> bool:
    """Return whether the run may become due without a further commit."""
    if row.status in {"finished", "cancelled"}:
        return False
    if row.cancel is not None or row.status in {"running", "ready"}:
        return True
    return row.wake_at is not None if row.status == "waiting" else row.status == "interrupted" and row.worked


class Due:
    """The markers of a store, in a folder for each flow."""

    def __init__(self, folder: str, root: str) -> None:
        self._folder = Path(folder)
        self._root = Path(root)
        """The folder of the runs."""
        self._run_ids: dict[tuple[str, str], str] = {}
        self._unreadable: set[str] = set()
        """The flows whose folders could not be read and for which a warning was logged."""

    def add(self, flow: str, folder: str, number: int) -> None:
        """Write a marker, durable on return. `folder` is that of the run's log."""
        path = self._path(flow, folder, number)
        of_flow = os.path.dirname(path)
        if not is_folder(of_flow):
            make_folder(of_flow)
            sync_folder(str(self._folder))
        os.close(open_in_place(path))
        sync_folder(of_flow)

    def drop(self, flow: str, folder: str, number: int) -> None:
        """Remove a marker. A failure is left to the next process that meets the marker."""
        with suppress(OSError):
            os.unlink(self._path(flow, folder, number))

    def remove(self, marker: Marker) -> None:
        """Remove a marker of the past."""
        with suppress(OSError):
            os.unlink(marker.path)

    def markers(self, flow: str) -> Iterator[Marker]:
        """Yield the markers of a flow."""
        try:
            folder = str(below(self._folder, place_of(flow)))
            with os.scandir(folder) as found:
                entries = [*found]
        except (FileNotFoundError, UnicodeEncodeError):  # the latter: no run has a flow of such a name
            return
        except OSError as exc:
            if exc.errno not in ONE_FILE:
                raise
            if flow not in self._unreadable:
                self._unreadable.add(flow)
                _logger.warning("no worker takes runs of flow %r, and others go on: %s", flow, exc)
            return
        for entry in entries:
            named = _NAME.fullmatch(entry.name)
            if named is not None:  # other files are not ours
                yield Marker(entry.path, named[1], named[2], int(named[3]))

    def run_id(self, marker: Marker) -> str | None:
        """Return the id of a marker's run, None if the run is missing. Raise StoreError if its `journal` is damaged."""
        key = (marker.place, marker.folder)
        known = self._run_ids.get(key)
        if known is None:
            pointer = read_pointer(str(below(self._root, marker.place)))
            if pointer is None or pointer.folder != marker.folder:
                self._drop_stale(marker)
                return None
            if len(self._run_ids) >= _MOST_KNOWN:
                self._run_ids.clear()
            known = self._run_ids[key] = pointer.run_id
        return known

    def _drop_stale(self, marker: Marker) -> None:
        """Remove the marker of a missing run, unless the run may be about to be created."""
        with suppress(OSError):
            if time.time() - os.stat(marker.path).st_mtime > _STALE:
                os.unlink(marker.path)

    def _path(self, flow: str, folder: str, number: int) -> str:
        run, log = os.path.split(folder)
        return str(below(self._folder, place_of(flow), f"{os.path.basename(run)}.{log}.{number:012d}"))
