"""What a file store asks of a file system: new files that are durable before anybody sees them, and put if absent.

A file is written under a name of this process's own in a folder for such, brought to the disk, and only then given its
place by `os.link`, which fails if there is one already. What a process that died left behind is swept away later; what a
living one is writing never is.
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
from milepost.model.process import Process, is_gone, this_process

if sys.platform != "win32":
    import fcntl

__all__ = ["Files", "exists", "lock", "open_to_read", "take_away"]

_STALE = 3600.0
"""Seconds after which the file of a process of which nothing is known counts as left behind."""

_OURS = re.compile(r".+%3A.*%3A.*~\w+~\w+")
"""The name of a file or folder in the making: its process, that one's key, a number."""

_numbers = itertools.count()


class Files:
    """Makes files through the folder `temporary`, which is on the same file system as where they go."""

    def __init__(self, temporary: str) -> None:
        self.temporary = temporary

    def check(self) -> None:
        """Raise StoreError unless the file system has what keeps writers apart: hard links, and locks of files."""
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
        """A path in the folder that nobody else uses; it tells whose it is."""
        return f"{self.temporary}/{_name_of(this_process())}~{next(_numbers)}"

    def write(self, data: bytes, path: str | None = None, *, is_durable: bool = True) -> str:
        """Make a file with these bytes, brought to the disk but for its name, and give its path."""
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
        """Give the file `made` the name `path` too, unless another has it: whether it has the name now."""
        try:
            os.link(made, path)
        except FileExistsError:
            # A network file system may have lost its first answer, and have told us of our own link.
            return self.is_put(made, path)
        except FileNotFoundError:  # the folder is gone
            return False
        return True

    def is_put(self, made: str, path: str) -> bool:
        """Whether the file `made` has the name `path` too."""
        try:
            return os.path.samefile(made, path)
        except FileNotFoundError:
            return False

    def discard(self, *made: str) -> None:
        """Take away files or folders of ours; what is left is swept away later."""
        for path in made:
            try:
                os.unlink(path)
            except (IsADirectoryError, PermissionError):  # the latter is what some systems say of a folder
                shutil.rmtree(path, ignore_errors=True)
            except OSError:
                continue

    def sweep(self) -> None:
        """Take away what processes left behind that are gone, or of which nothing is known and that wrote long ago.

        What is not called as `new_name` calls it is somebody else's, and so is all that a link leads to.
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
    """Whether the process called `name` is one of which `is_gone` can tell."""
    host, _, started = name.rpartition(":")
    return bool(started) and host.rpartition(":")[0] == this_process().name.rsplit(":", 2)[0]


def exists(path: str) -> bool:
    """Whether that name is taken, be it by a link that leads nowhere; OSError where that can't be told."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def open_to_read(path: str) -> int:
    """A descriptor of a file to read from. Never waits, as a named pipe would have it."""
    return os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))


def take_away(path: str, content: bytes) -> bool:
    """Unlink `path` if it has this content; False if it has another, is gone, or somebody else is about to.

    A name can't be compared and unlinked at once: who was frozen in between would unlink what was put there meanwhile.
    So whoever unlinks holds a lock on the very file that is meant, which goes with its process.
    """
    try:
        descriptor = os.open(path, os.O_RDWR)  # some network file systems lock for one only what is open for writing
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
    """Lock an open file until it is closed; False if it is locked by another. OSError where there are no locks."""
    if sys.platform == "win32":
        return True  # there a file that is open can't be unlinked by others
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
