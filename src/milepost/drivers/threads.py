"""Threads that run calls, and the events that wake those who wait.

They are no `ThreadPoolExecutor`, because the interpreter joins its threads at exit: a node that hangs must not keep a
process from ending.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

from milepost.model.ids import in_forked_child
from milepost.store import Store

# Wake-ups inside this process: a store has work to do, so that a worker need not wait for its next poll.


_lock = threading.Lock()
_listeners: weakref.WeakKeyDictionary[Store, set[Callable[[], None]]] = weakref.WeakKeyDictionary()


def listen(store: Store, tell: Callable[[], None]) -> None:
    """Call `tell`, in any thread, whenever a run of `store` was made ready here; it must not block."""
    with _lock:
        _listeners.setdefault(store, set()).add(tell)


def unlisten(store: Store, tell: Callable[[], None]) -> None:
    """Stop calling `tell`."""
    with _lock:
        _listeners.get(store, set()).discard(tell)


def wake(store: Store) -> None:
    """Tell all listeners that a run of `store` was made ready."""
    with _lock:
        tells = [*_listeners.get(store, ())]
    for tell in tells:
        tell()


@in_forked_child
def _wake_after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _listeners.clear()


# -- Daemon threads that run user code, as many as there is work for -------------------------------


IDLE = 10.0
"""Seconds for which a thread without work is kept."""


class Pending:
    """The outcome of a call in a thread or elsewhere. `settle` sets `done` once the outcome is there."""

    __slots__ = ("_done", "error", "is_done", "value")

    def __init__(self) -> None:
        self._done: threading.Event | None = None
        self.is_done = False
        self.value: Any = None
        self.error: BaseException | None = None

    @property
    def done(self) -> threading.Event:
        """An event that is set once the outcome is there. One thread may ask for it.

        It is made on demand, because most calls only use a callback.
        """
        if self._done is None:
            self._done = threading.Event()
            # Whichever comes second, this or `settle`, sees what the other has done.
            if self.is_done:
                self._done.set()
        return self._done

    def settle(self) -> None:
        """Mark the outcome as there."""
        self.is_done = True
        if self._done is not None:
            self._done.set()

    def get(self) -> Any:
        """Return the value, or raise the error; once."""
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None
        return self.value

    def recall(self) -> bool:
        """Take the call back: True if it has not begun and never will. A call in a thread has begun."""
        return False

    def abandon(self) -> None:
        """Note that nobody asks for the outcome any more."""


class PendingSet:
    """A set of outcomes that are abandoned together.

    Later additions are abandoned too: Ctrl-C may come before a call is handed in.
    """

    def __init__(self) -> None:
        self._promises: set[Pending | PendingSet] = set()
        self._is_over = False

    def add(self, promise: Pending | PendingSet) -> None:
        """Add `promise`; to be called before its call can begin."""
        self._promises.add(promise)
        # Whichever comes second, this or `abandon`, sees what the other has done.
        if self._is_over:
            promise.abandon()

    def discard(self, promise: Pending | PendingSet) -> None:
        """Remove `promise`."""
        self._promises.discard(promise)

    def abandon(self) -> None:
        """Abandon all."""
        self._is_over = True
        for promise in [*self._promises]:
            promise.abandon()


class Threads:
    """A set of threads that grows with the work and shrinks without it. Threads that are `lasting` never end."""

    def __init__(self, *, lasting: bool = False) -> None:
        self._idle = None if lasting else IDLE
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Pending, Callable[[Pending], None] | None]]
        self._work = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._free = 0
        """The number of threads that wait for work and are not reserved for any yet."""

    def submit(self, fn: Callable[[], Any], then: Callable[[Pending], None] | None = None) -> Pending:
        """Run `fn` in a thread; `then` is called there once the promise has its outcome."""
        promise = Pending()
        with self._lock:
            is_new = self._free == 0
            if not is_new:
                self._free -= 1
        if is_new:
            # Started before the work is handed over: if no thread can be started, nobody must find the work later.
            threading.Thread(target=self._run, name="milepost-call", daemon=True).start()
        self._work.put((fn, promise, then))
        return promise

    def _run(self) -> None:
        while True:
            try:
                fn, promise, then = self._work.get(timeout=self._idle)
            except queue.Empty:
                with self._lock:
                    if self._free == 0:
                        # A submit has counted on this thread; its work is on the way.
                        continue
                    self._free -= 1
                return
            try:
                promise.value = fn()
            except BaseException as exc:
                promise.error = exc
            with self._lock:
                self._free += 1
            promise.settle()
            if then is not None:
                then(promise)
            del fn, promise, then


threads = Threads()
"""The threads of this process."""
in_forked_child(threads.__init__)  # type: ignore[misc]
