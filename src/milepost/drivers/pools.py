"""The pools of this process: one for each factory that is given as `executor=`, shared by all runs.

A factory is called when its pool is first needed, in the thread that needs it, and again once that pool has broken. Its
pools are shut down when the last engine that binds the factory is closed, and when the interpreter ends. An executor
that was given as such is its owner's, and never touched.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from milepost.drivers.threads import Threads, threads
from milepost.model.executors import ExecutorLike
from milepost.model.failure import describe

__all__ = ["Pools", "Taken", "is_broken", "pools"]

logger = logging.getLogger("milepost")


def is_broken(error: BaseException) -> bool:
    """Return whether an executor that raised this takes no more calls."""
    return isinstance(error, BrokenExecutor) or (isinstance(error, RuntimeError) and "after shutdown" in str(error))


class Taken(NamedTuple):
    """A call that an executor has taken.

    It does not hold the pool, which must not be freed in the thread that settles its futures.
    """

    future: Future[Any]
    number: int
    """The number of the pool among those that the factory made."""
    kind: str
    """The name of the executor's class."""
    tells: bool
    """True if a future that could be cancelled has surely not begun. Executors in general do not guarantee that."""


_TELLING = {"concurrent.futures.thread", "concurrent.futures.process", "loky.process_executor"}
"""The modules of executors whose cancelled futures have surely not begun.

They are given by name, because to import them takes time that most programs have no use for.
"""


def _taken(pool: Executor, number: int, task: Callable[[], Any]) -> Taken:
    kind = type(pool)
    modules = {base.__module__ for base in kind.__mro__}
    if hasattr(task, "pack"):
        task.pack = _pickler_of(modules)
    return Taken(pool.submit(task), number, kind.__name__, not _TELLING.isdisjoint(modules))


def _pickler_of(modules: set[str]) -> Callable[[Any], Any] | None:
    """Return the pickler of an executor that breaks at objects that can't be unpickled, else None.

    `modules` are those of its class.
    """
    for module, (home, name) in _PICKLERS.items():
        if module in modules:
            dumps: Callable[[Any], Any] = attrgetter(name)(importlib.import_module(home))
            return dumps
    return None


_PICKLERS = {
    "concurrent.futures.process": ("multiprocessing.reduction", "ForkingPickler.dumps"),
    "loky.process_executor": ("loky.backend.reduction", "dumps"),
    "distributed.cfexecutor": ("distributed.protocol.pickle", "dumps"),
}


class _Slot:
    """The pool of one factory, while there is one."""

    __slots__ = ("factory", "making", "number", "pool", "users")

    def __init__(self, factory: Callable[[], Executor]) -> None:
        self.factory = factory
        self.making = threading.Lock()
        """A lock that is held while the factory is called, which may take seconds; nobody else waits for it."""
        self.pool: Executor | None = None
        self.number = 0
        """The number of pools that the factory has made."""
        self.users = 0
        """The number of engines that bind the factory."""


class Pools:
    """The pools that factories have made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: dict[Any, _Slot] = {}
        self._made: weakref.WeakSet[Executor] = weakref.WeakSet()
        self._leaving: weakref.WeakSet[Any] = weakref.WeakSet()
        """Processes of pools that were shut down while a call may still have run in them."""
        self._makers = Threads(lasting=True)
        """The threads in which factories are called.

        They last, because the system may end processes with the thread that started them. A local cluster of Ray
        arranges to be ended so.
        """

    def submit(self, executor: ExecutorLike, task: Callable[[], Any]) -> Taken:
        """Hand `task` to the executor.

        A factory's pool that refuses the task because it has broken is replaced, and the new one is asked: nothing has
        begun. Raises the errors of making the pool and of handing over, and TypeError if a factory gives no executor.
        """
        if isinstance(executor, Executor):
            return _taken(executor, 0, task)
        slot = self._slot(executor)
        pool, number = self._pool_of(slot)
        try:
            return _taken(pool, number, task)
        except RuntimeError as exc:
            if not is_broken(exc):
                raise
        self.give_up(executor, number)
        return _taken(*self._pool_of(slot), task)

    def give_up(self, executor: ExecutorLike, number: int) -> None:
        """Stop using that pool of a factory. Waits for nothing: the thread that notices the break may call it."""
        if isinstance(executor, Executor):
            return
        slot = self._slot(executor)
        pool = slot.pool
        if pool is not None and slot.number == number:
            slot.pool = None
            # In another thread, because this one may hold the pool's own lock.
            threads.submit(partial(self._shut, pool))

    def keep(self, executor: ExecutorLike | None) -> None:
        """Note that one more engine binds this executor."""
        if executor is not None and not isinstance(executor, Executor):
            slot = self._slot(executor)
            with self._lock:
                slot.users += 1

    def leave(self, executor: ExecutorLike | None) -> None:
        """Note that an engine which bound this executor is closed. With the last one a factory's pool is shut down."""
        if executor is None or isinstance(executor, Executor):
            return
        slot = self._slot(executor)
        with self._lock:
            slot.users -= 1
            if slot.users > 0:
                return
            self._slots.pop(_key(executor), None)
        pool, slot.pool = slot.pool, None
        if pool is not None:
            self._shut(pool)

    def close(self) -> None:
        """Shut all pools down and end their processes; calls that still run there are not waited for."""
        made = [*self._made]
        with self._lock:
            self._slots.clear()
        for pool in made:
            self._shut(pool)
        for process in [*self._leaving]:
            with suppress(Exception):  # it has ended by itself
                process.kill()

    def _slot(self, factory: Callable[[], Executor]) -> _Slot:
        key = _key(factory)
        with self._lock:
            slot = self._slots.get(key)
            if slot is None:
                slot = self._slots[key] = _Slot(factory)
            return slot

    def _pool_of(self, slot: _Slot) -> tuple[Executor, int]:
        with slot.making:
            pool = slot.pool
            if pool is None:
                pool = self._make(slot.factory)
                slot.number += 1
                slot.pool = pool
            return pool, slot.number

    def _make(self, factory: Callable[[], Executor]) -> Executor:
        making = self._makers.submit(factory)
        making.done.wait()
        pool = making.get()
        if not isinstance(pool, Executor):
            name = getattr(factory, "__qualname__", None) or repr(factory)
            raise TypeError(f"executor={name} gave {pool!r}: it must give a concurrent.futures.Executor")
        # At the end of the interpreter the standard library waits for the calls in its pools, which may never end. The
        # function registered last is called first, so it is registered now: the pool's module has registered by now.
        getattr(threading, "_register_atexit", atexit.register)(self.close)
        self._made.add(pool)
        return pool

    def _shut(self, pool: Executor) -> None:
        # No public name has the processes, and none ends them before Python 3.14.
        self._leaving.update((getattr(pool, "_processes", None) or {}).values())
        try:
            try:
                pool.shutdown(wait=False, cancel_futures=True)
            except TypeError:  # executors of other libraries may know `wait` only
                pool.shutdown(wait=False)
        except Exception as exc:  # the client of a cluster, say, may have been closed before
            logger.info("a pool (%s) could not be shut down: %s", type(pool).__name__, describe(exc))


def _key(factory: Callable[[], Executor]) -> Any:
    try:
        hash(factory)
    except TypeError:
        return id(factory)  # its slot keeps it alive
    return factory


pools = Pools()
"""The pools of this process."""


def _after_fork() -> None:
    pools.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
