"""Files and folders: names, writes that survive a power loss, and locks.

A file is written under a name of its process in a folder for such files, and synced to the disk. Only then `os.link`
gives it its place, which fails if the place is taken. Files that a dead process left behind are swept later; a file
that a living process is writing never is.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import itertools
import os
import re
import secrets
import shutil
import stat
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

from milepost.errors import StoreError
from milepost.model.ids import Clock, Process, SystemClock, is_gone, this_process
from milepost.stores.base.transaction import WriteConflict

# -- File names for ids, and paths that stay below their root --------------------------------------
#
# An ordinary id is its own file name, so that people can read a folder. Any other is replaced by its percent form and a
# part of its digest. Two ids never share a name, even on file systems that fold case, and the exact id is in the file's
# content. Nothing here touches a file.


_LONGEST = 100
_PLAIN = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_RESERVED = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789")}
)
"""Names that Windows takes for a device, whatever extension follows.

Source: https://learn.microsoft.com/windows/win32/fileio/naming-a-file
"""


def place_of(id: str) -> str:
    """Return the file name, without extension, that stands for `id`. Equal ids have the same
    name, different ids never do."""
    if _PLAIN.fullmatch(id) and len(id) <= _LONGEST and not id.endswith(".") and not _is_reserved(id):
        return id
    form = quote(id, safe="")
    if form.startswith(".") or _is_reserved(form):
        form = f"%{ord(form[0]):02X}{form[1:]}"
    return f"{form[:_LONGEST]}~{hashlib.sha256(id.encode()).hexdigest()[:16]}"


def below(root: Path, *names: str) -> Path:
    """Return the path of `names`, one component each, below `root`. Raise `StoreError` if one
    of them leads anywhere else."""
    for name in names:
        if name in {"", ".", ".."} or any(letter in name for letter in "/\\:\0"):
            raise StoreError(
                f"{name!r} names no file below {root}: what names it was changed; restore it from a copy",
                store=str(root),
                op="open",
            )
    return root.joinpath(*names)


def _is_reserved(name: str) -> bool:
    return name.partition(".")[0].lower() in _RESERVED


# File system operations of a file store: new files that are durable before anybody sees them, and put if
# absent.


if sys.platform != "win32":
    import fcntl


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


# -- Files that somebody else may have put there ---------------------------------------------------
#
# Who shares the folder can put a pipe, a device, a link or a file without an end where a file of ours is expected. So
# every file is opened here: without following a link, without waiting, and only if it is a regular one.


LARGEST = 4 << 30
"""The largest size of a commit in bytes."""
SMALL = 1 << 20
"""The largest size in bytes of all other files but a block of the index."""

_CAREFULLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: str, largest: int = SMALL, flags: int = os.O_RDONLY) -> int:
    """Open a regular file of at most `largest` bytes, no link to one, and return its descriptor. Never wait.

    Raise OSError with the number of a fault of one file for anything else.
    """
    descriptor = os.open(path, flags | _CAREFULLY, 0o600)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is no regular file", path)
        if status.st_size > largest:
            raise OSError(errno.EINVAL, f"has {status.st_size} bytes, and at most {largest} are read", path)
        if flags & os.O_CREAT and status.st_nlink > 1:
            raise OSError(errno.EINVAL, "is another file too", path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_in_place(path: str, largest: int = SMALL) -> int:
    """Open a file that is written in its place, and create it if it is missing. Raise OSError also if it has a second
    name: what is written would change the file of somebody else."""
    return open_regular(path, largest, os.O_RDWR | os.O_CREAT)


def read_regular(path: str, largest: int = SMALL) -> bytes:
    """Read a file that `open_regular` opens."""
    with open(open_regular(path, largest), "rb") as file:
        return file.read(largest)


def take_away(path: str, content: bytes) -> bool:
    """Unlink `path` if it has this content. Return False if it has another, is gone, or
    somebody else is about to unlink it.

    No call compares and unlinks a name at once: a process that was frozen in between would unlink what was put there
    since. So whoever unlinks holds a lock on the very file that it means; the lock ends with its process.
    """
    try:
        # Some network file systems lock only files that are open for writing.
        descriptor = open_regular(path, flags=os.O_RDWR)
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


# -- Leases as the times of small files: one for each token, touched at each renewal ---------------
#
# A renewal is no commit, and takes one call. If the store uses the machine's clock, the times are the file system's own,
# so that machines whose clocks differ agree on them.


_MEASURED = 10.0
"""Seconds for which a measured difference between the two clocks is used."""
_SAME = 0.1
"""Seconds within which the two clocks count as one: a file system's time goes by ticks, and its answer takes a while."""


class Leases:
    """The lease files of a store. `probe` is a file that is touched to read the file system's time."""

    def __init__(self, clock: Clock, probe: str) -> None:
        self._clock = clock
        self._has_machine_time = isinstance(clock, SystemClock)
        self._probe = probe
        self._ahead = 0.0
        self._measured_at = float("-inf")

    @property
    def slack(self) -> float:
        """Seconds by which a renewal may seem to lie ahead and still count as now: times are read one after another."""
        return 1.0 if self._has_machine_time else 1e-5

    def path(self, folder: str, epoch: int) -> str:
        """Return the file of a token. A run has one token per epoch."""
        return f"{folder}/lease-{epoch}"

    def renew(self, path: str) -> None:
        """Begin a lease, or renew it."""
        descriptor = open_in_place(path)
        try:
            self._touch(descriptor if os.utime in os.supports_fd else path)
        finally:
            os.close(descriptor)

    def renewed_at(self, path: str) -> float | None:
        """Return when a lease was last renewed, in POSIX seconds of the store's clock; None if there is no such file."""
        try:
            moment = os.lstat(path).st_mtime_ns
        except FileNotFoundError:
            return None
        return round(moment / 1000) / 1e6 - self._difference()

    def _touch(self, path: int | str) -> None:
        if self._has_machine_time:
            os.utime(path)
        else:
            moment = round(self._clock.time() * 1e6) * 1000
            os.utime(path, ns=(moment, moment))

    def _difference(self) -> float:
        """Return the seconds by which the file system's time is ahead of this machine's."""
        if not self._has_machine_time:
            return 0.0
        now = time.monotonic()
        if now - self._measured_at > _MEASURED:
            self._measured_at = now
            with suppress(OSError):
                self.renew(self._probe)
                ahead = os.lstat(self._probe).st_mtime_ns / 1e9 - self._clock.time()
                self._ahead = 0.0 if abs(ahead) < _SAME else ahead
        return self._ahead


# -- The order of writers to a run: threads of a process go one after another, processes try again -


_PATIENCE = 10.0
"""Seconds for which a change is tried again while others are faster."""
_PAUSE = 0.004
"""Longest pause in seconds before another try. Pauses make writers that collide fall out of step."""


class Locks:
    """A lock for each run that a thread of this process writes to."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    def acquire(self, run_id: str) -> None:
        """Wait until no other thread has the run's lock, and take it."""
        with self._guard:
            lock, users = self._locks.get(run_id) or (threading.Lock(), 0)
            self._locks[run_id] = (lock, users + 1)
        try:
            lock.acquire()
        except BaseException:
            self._leave(run_id)
            raise

    def release(self, run_id: str) -> None:
        """Release the run's lock."""
        self._locks[run_id][0].release()
        self._leave(run_id)

    def _leave(self, run_id: str) -> None:
        with self._guard:
            lock, users = self._locks.pop(run_id)
            if users > 1:
                self._locks[run_id] = (lock, users - 1)


class Attempts:
    """The tries of a change that others keep overtaking."""

    def __init__(self, place: str, op: str) -> None:
        self._place = place
        self._op = op
        self._number = 0
        self._deadline = 0.0

    def wait(self, overtaken: WriteConflict) -> None:
        """Pause before the next try. Raise StoreError if there were enough."""
        self._number += 1
        now = time.monotonic()
        self._deadline = self._deadline or now + _PATIENCE
        if now > self._deadline:
            raise StoreError(
                f"the store {self._place} could not {self._op.replace('_', ' ')}: others were faster {self._number} times "
                f"in a row: try again",
                store=self._place,
                op=self._op,
            ) from overtaken
        time.sleep(secrets.randbelow(1000) / 1000 * _PAUSE)
