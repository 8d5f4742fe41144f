"""The runs of a store in the order of their creation.

That order is found by looking at all runs' folders; what their `journal` files say is remembered for as long as nothing
in a folder has changed, so that only the first look reads them.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import unquote

from milepost.errors import StoreError
from milepost.stores.file.log import read_pointer

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
            with suppress(FileNotFoundError):
                status = entry.stat()
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
        except StoreError as exc:
            return Listed(0.0, "", unquote(entry.name.partition("~")[0]), str(exc))
        return None if pointer is None else Listed(pointer.created_at, pointer.folder, pointer.run_id)
