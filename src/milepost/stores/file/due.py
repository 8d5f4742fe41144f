"""Markers of the runs that a worker may have to look at, one for each, by flow, so that a poll need not read all runs.

A marker is an empty file. It is written before the commit after which its run may be due, and removed after the commit
after which it is not. Its name has the number of the first of these: a late process removes a marker of the past, never
a newer one. So there may be a marker too many, which costs a look, and never one too few.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from milepost.stores.base.fence import Row
from milepost.stores.base.folders import make_folder, sync_folder
from milepost.stores.file.commit import ONE_FILE
from milepost.stores.file.fs import below, place_of
from milepost.stores.file.log import read_pointer

__all__ = ["Due", "Marker", "may_be_due"]

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
        try:
            self._make(path)
        except FileNotFoundError:
            make_folder(os.path.dirname(path))
            sync_folder(str(self._folder))
            self._make(path)
        sync_folder(os.path.dirname(path))

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

    def _make(self, path: str) -> None:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
