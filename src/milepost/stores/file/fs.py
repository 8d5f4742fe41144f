"""File system operations of a file store: new files that are durable before anybody sees them, and put if absent.

A file is written under a name of its process in a folder for such files, and synced to the disk. Only then `os.link`
gives it its place, which fails if the place is taken. Files that a dead process left behind are swept later; a file
that a living process is writing never is.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import shutil
import sys
import time
from contextlib import suppress
from urllib.parse import quote, unquote

from milepost.errors import StoreError
from milepost.model.ids import Process, is_gone, this_process

if sys.platform != "win32":
    import fcntl

__all__ = ["Files", "exists", "lock", "open_to_read", "take_away"]

_STALE = 3600.0
"""Seconds after which a file counts as left behind if its process is unknown."""

_OURS = re.compile(r".+%3A.*%3A.*~\w+~\w+")
"""The form of a temporary name: the process, its key, and a number."""

_numbers = itertools.count()


class Files:
    """A writer of files through the folder `temporary`, which is on the same file system as their final places."""

    def __init__(self, temporary: str) -> None:
        self.temporary = temporary

    def check(self) -> None:
        """Raise StoreError unless the file system has what keeps writers apart: hard links and file locks."""
        made, other = self.write(b"", is_durable=False), self.new_name()
        try:
            os.link(made, other)
            descriptor = os.open(other, os.O_RDWR)
            try:
                lock(descriptor)
            finally:
                os.close(descriptor)
        except OSError as exc:
            raise StoreError(
                f"the file system of {self.temporary} has no hard links or no locks of files ({exc}), which keep two "
                f"processes from writing at once: use a local disk or a network folder that has them, or another store",
                store=self.temporary,
                op="open",
            ) from exc
        finally:
            self.discard(made, other)

    def new_name(self) -> str:
        """Return a path in the folder that nobody else uses. It names its process."""
        return f"{self.temporary}/{_name_of(this_process())}~{next(_numbers)}"

    def write(self, data: bytes, path: str | None = None, *, is_durable: bool = True) -> str:
        """Write a file with these bytes, sync all of it but its name to the disk, and return its path."""
        path = path or self.new_name()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(descriptor, left) :]
            if is_durable:
                os.fsync(descriptor)
        except BaseException:
            with suppress(OSError):
                os.unlink(path)
            raise
        finally:
            os.close(descriptor)
        return path

    def put(self, made: str, path: str) -> bool:
        """Link the file `made` to the name `path` unless that is taken. Return whether it has the name now."""
        try:
            os.link(made, path)
        except FileExistsError:
            # The first answer may have been lost on a network file system, and this error may report our own link.
            return self.is_put(made, path)
        except FileNotFoundError:  # the folder is gone
            return False
        return True

    def is_put(self, made: str, path: str) -> bool:
        """Return whether the file `made` also has the name `path`."""
        try:
            return os.path.samefile(made, path)
        except FileNotFoundError:
            return False

    def discard(self, *made: str) -> None:
        """Remove temporary files or folders. What can't be removed is swept later."""
        for path in made:
            try:
                os.unlink(path)
            except (IsADirectoryError, PermissionError):  # some systems raise the latter for a folder
                shutil.rmtree(path, ignore_errors=True)
            except OSError:
                continue

    def sweep(self) -> None:
        """Remove what processes left behind that are gone, or that are unknown and wrote long ago.

        Files without a name of the form of `new_name` belong to others, and so does all that a link leads to.
        """
        if os.path.islink(self.temporary):
            return
        with os.scandir(self.temporary) as entries:
            left = [entry for entry in entries if _OURS.fullmatch(entry.name)]
        for entry in left:
            name = unquote(entry.name.rsplit("~", 2)[0])
            with suppress(OSError):
                written = entry.stat(follow_symlinks=False).st_mtime
                if is_gone(name) or (not _is_known_here(name) and time.time() - written > _STALE):
                    self.discard(entry.path)


@functools.lru_cache(maxsize=2)
def _name_of(process: Process) -> str:
    return f"{quote(process.name, safe='')}~{process.key}"


def _is_known_here(name: str) -> bool:
    """Return whether `is_gone` can decide about the process with this name."""
    host, _, started = name.rpartition(":")
    return bool(started) and host.rpartition(":")[0] == this_process().name.rsplit(":", 2)[0]


def exists(path: str) -> bool:
    """Return whether a name is taken, even by a link that leads nowhere. Raise OSError if that can't be found out."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def open_to_read(path: str) -> int:
    """Open a file for reading and return its descriptor. This never waits, as a named pipe would otherwise make it."""
    return os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))


def take_away(path: str, content: bytes) -> bool:
    """Unlink `path` if it has this content. Return False if it has another, is gone, or
    somebody else is about to unlink it.

    No call compares and unlinks a name at once: a process that was frozen in between would unlink what was put there
    since. So whoever unlinks holds a lock on the very file that it means; the lock ends with its process.
    """
    try:
        descriptor = os.open(path, os.O_RDWR)  # some network file systems lock only files that are open for writing
    except FileNotFoundError:
        return False
    try:
        if not lock(descriptor) or os.read(descriptor, len(content) + 1) != content:
            return False
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                os.unlink(path)
                return True
        return False
    finally:
        os.close(descriptor)


def lock(descriptor: int) -> bool:
    """Lock an open file until it is closed. Return False if another holds the lock. Raise
    OSError where there are no locks."""
    if sys.platform == "win32":
        return True  # there a file that is open can't be unlinked by others
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
