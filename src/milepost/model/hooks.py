"""Hooks: plain callables that get each event of a run.

A hook is called with one event, in the order of the journal. For `NodeStarted` it may return a context manager,
which then surrounds the call of the node. A hook that raises is logged and never changes the run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from milepost.model.failure import contained, error_of

if TYPE_CHECKING:
    from milepost.model.events import Event

__all__ = ["Hook", "notify", "surround"]

Hook = Callable[[Any], Any]

logger = logging.getLogger("milepost")
# A program that configures no logging hears nothing from a library; without this, warnings would go to stderr.
logger.addHandler(logging.NullHandler())


def notify(hooks: Sequence[Hook], event: Event) -> list[AbstractContextManager[Any]]:
    """Call every hook with `event`, and return the context managers that they gave."""
    around: list[AbstractContextManager[Any]] = []
    for hook in hooks:
        try:
            answer = contained(hook, event)
        except Exception:
            logger.exception("hook %r failed at %s", hook, type(event).__name__, extra={"run_id": event.run_id})
            continue
        if isinstance(answer, AbstractContextManager):
            around.append(answer)
    return around


@contextmanager
def surround(around: Sequence[AbstractContextManager[Any]], run_id: str) -> Iterator[None]:
    """Enter the context managers for the time of a call; log one that fails, and never let it change the call."""
    with ExitStack() as stack:
        for manager in around:
            try:
                contained(manager.__enter__)
            except Exception:
                logger.exception("context manager %r of a hook failed", manager, extra={"run_id": run_id})
                continue
            stack.push(_harmless_exit(manager, run_id))
        yield


def _harmless_exit(manager: AbstractContextManager[Any], run_id: str) -> Callable[..., bool]:
    def leave(*exc_info: Any) -> bool:
        try:
            manager.__exit__(*exc_info)
        except BaseException as exc:
            # A generator-based manager raises the call's own exception again, which is being raised already.
            if exc is not exc_info[1]:
                if not isinstance(exc, Exception) and error_of(exc) is None:
                    raise
                logger.exception("context manager %r of a hook failed", manager, extra={"run_id": run_id})
        return False

    return leave
