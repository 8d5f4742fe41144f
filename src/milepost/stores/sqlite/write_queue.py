"""The queue of the processes that write to one database.

SQLite has no queue: a process that finds the database locked asks again later, and meanwhile any other may get the lock.
Here a process that had to wait for some milliseconds joins a queue, and the kernel wakes it when it is its turn. So processes
take turns, and each writes for some milliseconds in its own.

The queue is a courtesy: SQLite's own lock is what keeps writes apart. So a process goes ahead without its turn if the
system has no such locks, or if it was not its turn for long: the one whose turn it is may have been stopped.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None  # type: ignore[assignment]

_TAKE = 0 if fcntl is None else fcntl.LOCK_EX | fcntl.LOCK_NB
SLICE = 0.005
"""Seconds for which a process asks again and again before it joins the queue. Whoever writes goes on for about as long:
writes of one process after the other need no switch of processes, and find its pages in the cache."""
_PAUSE = 0.001
"""Seconds between two questions."""
LONGEST_WAIT = 1.0
"""Seconds that a process waits in the queue."""


class WriteQueue:
    """This process's place in the queue, for one thread at a time.

    Whose turn it is has the lock by `flock` on the file of `descriptor`, which ends with its process. Nobody can wait for
    such a lock with a limit. So a thread of its own waits, and hands the lock over or, if it is not wanted any more, gives
    it back.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_usable = fcntl is not None
        self._is_closed = False
        self._has_turn = False
        self._asker: threading.Thread | None = None
        self._state = threading.Lock()
        """The lock that guards what this thread and the asking one both change."""
        self._is_asking = self._is_waiting = False
        self._wanted, self._granted = threading.Lock(), threading.Lock()
        self._wanted.acquire()
        self._granted.acquire()

    def __enter__(self) -> None:
        try:
            self.enter()
        except BaseException:
            self.leave()
            raise

    def __exit__(self, *_: object) -> None:
        self.leave()

    def enter(self) -> None:
        """Wait for the turn of this process, at most `SLICE + LONGEST_WAIT` seconds. Whatever happens, call `leave` then."""
        # While an earlier wait that was given up is not answered, nobody waits again.
        if not self._is_usable or self._is_asking or self._is_taken():
            return
        until = time.monotonic() + SLICE
        while time.monotonic() < until:
            time.sleep(_PAUSE)
            if self._is_taken():
                return
        self._wait()

    def _is_taken(self) -> bool:
        """Return True if this process has the turn now, or if the system has no such locks."""
        self._has_turn = True  # a signal's exception may come as soon as it is so
        try:
            fcntl.flock(self._descriptor, _TAKE)
        except BlockingIOError:
            self._has_turn = False
        except OSError:  # such as those of some network file systems
            self._has_turn = self._is_usable = False
        return self._has_turn or not self._is_usable

    def leave(self) -> None:
        """Let the next process in, if it is this one's turn."""
        if self._has_turn:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._has_turn = False

    def close(self) -> None:
        """Close the file, or have the asking thread do so once it has its answer."""
        self._is_usable = False
        with self._state:
            self._is_closed = True
            if self._asker is None:
                os.close(self._descriptor)
        with suppress(RuntimeError):  # it has not seen the last request yet
            self._wanted.release()

    def close_in_child(self) -> None:
        """Close the copy of the file that a forked child has. The parent keeps its turn, if it has one."""
        os.close(self._descriptor)

    def _wait(self) -> None:
        if self._asker is None:
            self._asker = threading.Thread(target=self._ask, name="milepost-write-queue", daemon=True)
            self._asker.start()
        try:
            self._is_asking = self._is_waiting = True
            self._wanted.release()
            self._granted.acquire(timeout=LONGEST_WAIT)
        finally:
            with self._state:
                self._is_waiting = False
                self._granted.acquire(blocking=False)  # the answer may have come just when the wait ended

    def _ask(self) -> None:
        """Wait for the lock whenever that is wanted, until the queue is closed."""
        while True:
            self._wanted.acquire()
            if not self._is_closed:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            with self._state:
                self._is_asking = False
                self._has_turn = self._is_waiting
                if self._is_waiting:
                    self._granted.release()
                    continue
                # A child that was forked meanwhile has the file too: closing it here would not give the lock back.
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
                if self._is_closed:
                    os.close(self._descriptor)
                    return
