"""Creation of folders that are durable once the call returns, each readable for its owner alone."""

from __future__ import annotations

import os
import sys


def is_folder(path: str) -> bool:
    """Return whether a path is a folder itself. Through a link files would be written and deleted in somebody else's."""
    return os.path.isdir(path) and not os.path.islink(path)


def make_folder(path: str) -> bool:
    """Create a folder for its owner alone. Return False if it exists. Its parent must exist.

    Raise OSError if there is anything else in its place, a link to a folder too.
    """
    while True:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if is_folder(path):
                return False
            if os.path.lexists(path):
                raise
            continue  # it was removed meanwhile
        return True


def make_folders(path: str) -> None:
    """Create a folder and all missing ones above it, each for its owner alone, and sync their names to the disk."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    if above != path:
        make_folders(above)
    if make_folder(path):
        sync_folder(above)


def sync_folder(path: str) -> None:
    """Sync the names in a folder to the disk."""
    if sys.platform == "win32":
        return  # Windows has no call for this, and keeps names by its file system's log
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
