"""The runs of a store in the order of their creation.

That order is found by looking at all runs' folders; what their `journal` files say is remembered for as long as nothing
in a folder has changed, so that only the first look reads them.
"""

from __future__ import annotations

import os
import stat
import time
from typing import NamedTuple
from urllib.parse import unquote

from milepost.stores.base.transaction import DamagedRow
from milepost.stores.file.log import JOURNAL, damaged_pointer, read_pointer
from milepost.stores.file.paths import place_of

__all__ = ["Catalogue", "Listed"]

_SETTLED = 2.0
"""Seconds after which a change of a folder has certainly a time of its own, however coarse those are."""


class Listed(NamedTuple):
    """A run; they sort by their creation. `damage` says why its `journal` can't be read."""

    created_at: float
    folder: str
    run_id: str
    damage: str = ""


class Catalogue:
    """The runs below `root`."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._known: dict[str, tuple[tuple[int, int], Listed]] = {}

    def runs(self) -> list[Listed]:
        """All runs, newest first."""
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
            except OSError as exc:  # a link to itself, say, where a run's folder was
                listed.append(_damaged(entry, f"{entry.path} can't be read ({exc.strerror})"))
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
        return None if pointer is None else Listed(pointer.created_at, pointer.folder, pointer.run_id)


def _damaged(entry: os.DirEntry[str], why: str) -> Listed:
    return Listed(0.0, "", unquote(entry.name.partition("~")[0]), why)
