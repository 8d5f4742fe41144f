"""The common part of both drivers: the publication of events, the call of user code, and quick effects."""

from __future__ import annotations

import contextvars
import logging
import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from milepost.drivers.branches import Branch
from milepost.drivers.heartbeat import heartbeat
from milepost.drivers.threads import Pending, PendingSet, threads
from milepost.executor.context import run_within
from milepost.executor.effects import (
    Alone,
    Call,
    Drop,
    Effect,
    Emit,
    Hold,
    LeaseView,
)
from milepost.model.events import (
    AttemptFailed,
    CheckpointFailed,
    Event,
    Hook,
    NodeOverdue,
    RunBlocked,
    RunCompleted,
    RunStarted,
    RunWaiting,
    WorkflowCompleted,
    WorkflowStarted,
    notify,
    sentence,
)
from milepost.model.ids import Clock

logger = logging.getLogger("milepost")

MAX_THREADS = 32
"""The number of threads for calls at once that a `Gather` without its own limit has under the sync driver."""
GLANCE = 0.5
"""Seconds between two looks at the lease while a driver sleeps.

They are also the longest time between two chances for Ctrl-C to be seen: a signal that comes just before a wait without
end does not end that wait.
"""


_LEVELS: dict[type[Event], int] = {
    **dict.fromkeys((AttemptFailed, CheckpointFailed, NodeOverdue, RunBlocked), logging.WARNING),
    **dict.fromkeys((RunStarted, RunCompleted, RunWaiting, WorkflowStarted, WorkflowCompleted), logging.INFO),
}
"""The log level of events; DEBUG for the others."""


class StreamClosed(BaseException):
    """The signal to the core that the consumer of a stream has gone: the run stops at a durable point."""


def is_logged() -> bool:
    """Return whether somebody reads events in the log. Otherwise they need not be made."""
    return logger.isEnabledFor(logging.INFO)


def log(event: Event) -> None:
    """Log an event as one record: WARNING for failures, INFO for a run, DEBUG for the rest."""
    level = _LEVELS.get(type(event), logging.DEBUG)
    if logger.isEnabledFor(level):
        node_id = getattr(event, "node_id", None) or getattr(event, "step_name", None)
        extra = {"run_id": event.run_id, "node_id": node_id}
        logger.log(level, "%s", sentence(event), extra=extra)


class Driver:
    """The common part of both drivers: events, and the effects that neither block nor call user code."""

    def __init__(self, clock: Clock, hooks: Sequence[Hook] = ()) -> None:
        self.clock = clock
        self.hooks = hooks
        self.stream_to: Callable[[Event], None] | None = None

    def publish(self, event: Event) -> list[Any]:
        """Log the event and pass it to hooks and stream; return the context managers that hooks returned."""
        log(event)
        around = notify(self.hooks, event) if self.hooks else []
        if self.stream_to is not None:
            self.stream_to(event)
        return around

    def perform_quick(self, effect: Effect) -> Any:
        """Return the answer of an effect that only concerns this process."""
        if isinstance(effect, Emit):
            self.publish(effect.event)
            return None
        if isinstance(effect, Hold):
            return heartbeat.hold(effect.store, effect.token, effect.lease, self.clock)
        if isinstance(effect, Drop):
            heartbeat.drop(effect.store, effect.token, effect.owed)
            return None
        if isinstance(effect, Alone):
            return None
        raise TypeError(f"this driver does not perform {type(effect).__name__}")

    def bind(self, call: Call) -> Callable[[], Any]:
        """Return `call` as a function without arguments for a thread: in a copy of this context, inside its hooks."""
        around = self.publish(call.announce) if call.announce is not None else ()
        context = contextvars.copy_context()
        return lambda: context.run(invoke, call, around)

    def submit(
        self, call: Call, then: Callable[[Pending], None] | None = None, kept: PendingSet | None = None
    ) -> Pending:
        """Have an executor or a thread run a sync call; `then` is called there with its outcome.

        A call that an executor gets can be taken back. It is added to `kept` before it begins.
        """
        if call.executor is None:
            return threads.submit(self.bind(call), then)
        from milepost.drivers.executors import ExecutorCall  # most programs never need it

        errand = ExecutorCall(call, self.publish(call.announce) if call.announce is not None else (), then)
        if kept is not None:
            kept.add(errand)
        errand.begin()
        return errand

    def mark_overdue(self, call: Call) -> None:
        """Signal to the call, and to listeners, that its time is over."""
        if call.context is not None:
            call.context._stop = True
            self.publish(
                NodeOverdue(run_id=call.context.run_id, timestamp=self.clock.time(), node_id=call.context.node_id)
            )


def invoke(call: Call, around: Sequence[Any] = ()) -> Any:
    """Call user code with its context current. A coroutine function gives the coroutine."""
    return run_within(call.context, call.fn, call.args, around)


def _put(ended: queue.SimpleQueue[tuple[Branch, Pending]], branch: Branch, promise: Pending) -> None:
    ended.put((branch, promise))


def is_awake(held: LeaseView | None) -> bool:
    """Return whether a sleep need not go on, because the run is lost, cancelled or to be given back."""
    return held is not None and (held.is_over or (held.is_draining and not held.is_ending))


@contextmanager
def watched(held: LeaseView | None, tell: Callable[[], None]) -> Iterator[None]:
    """Have `tell` called, in any thread, if the run is lost or cancelled while the block lasts."""
    if held is None:
        yield
        return
    held.watch(tell)
    try:
        yield
    finally:
        held.unwatch(tell)


def held_of(call: Call) -> LeaseView | None:
    """Return the lease of the run that makes the call, or None."""
    return None if call.context is None else call.context._scope.held
