"""Notice of process forks: stores hear before and after a fork, so that nothing half done or shared gets into the child."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Forkable(Protocol):
    """An object that is notified of forks."""

    def _before_fork(self) -> None:
        """Wait for writes to end, hold off others, and release what must not be shared."""

    def _after_fork(self, is_child: bool) -> None:
        """Go on after a fork. A child may also come from a fork that was not announced."""


def watch(store: Forkable) -> None:
    """Notify `store` of forks for as long as it lives."""
    _stores.add(store)


_stores: weakref.WeakSet[Forkable] = weakref.WeakSet()
_forking = threading.local()


def _before_fork() -> None:
    _forking.stores = list(_stores)
    for store in _forking.stores:
        store._before_fork()


def _after_fork_in_parent() -> None:
    for store in _forking.__dict__.pop("stores", ()):
        store._after_fork(is_child=False)


def _after_fork_in_child() -> None:
    for store in list(_stores):
        store._after_fork(is_child=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
