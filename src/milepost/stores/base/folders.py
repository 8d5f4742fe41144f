"""Folders that are there for good once they are made, each for its owner alone."""

from __future__ import annotations

import os
import sys

__all__ = ["make_folder", "make_folders", "sync_folder"]


def make_folder(path: str) -> bool:
    """Make a folder for its owner alone; False if there is one. Its parent must be there."""
    while True:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if os.path.isdir(path):
                return False
            if os.path.lexists(path):
                raise
            continue  # it was taken away since
        return True


def make_folders(path: str) -> None:
    """Make a folder and all above it that are missing, each for its owner alone, and bring their names to the disk."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    if above != path:
        make_folders(above)
    if make_folder(path):
        sync_folder(above)


def sync_folder(path: str) -> None:
    """Bring the names in a folder to the disk."""
    if sys.platform == "win32":
        return  # Windows has no call for this, and keeps names by its file system's log
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
