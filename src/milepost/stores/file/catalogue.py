"""The runs of a store in the order of their creation.

The order comes from a listing of all runs' folders. The content of their `journal` files is remembered as long as
nothing in the folder has changed, so that only the first listing reads them.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
import time
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import unquote

from milepost.stores.base.transaction import DamagedRow
from milepost.stores.file.fs import lock, place_of
from milepost.stores.file.log import JOURNAL, damaged_pointer, read_pointer

__all__ = ["Catalogue", "Listed"]

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
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
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
