"""Wake-ups inside this process: a store has work to do, so that a worker need not wait for its next poll."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

from milepost.store import Store

__all__ = ["listen", "unlisten", "wake"]

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


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _listeners.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
