"""The common part of both drivers: it publishes events, calls user code, and performs effects that never block."""

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
from milepost.model.events import Event, Hook, NodeOverdue, log, notify
from milepost.model.ids import Clock

logger = logging.getLogger("milepost")

MAX_THREADS = 32
"""The number of calls that a `Gather` without its own limit runs at once, each in a thread, under the sync driver."""
INSTANT = 1e-6
"""Seconds that are not slept any more: a clock need not count in smaller steps."""
GLANCE = 0.5
"""Seconds between two looks at the lease while a driver sleeps.

No wait is longer than this, so that Ctrl-C is noticed. Python would notice a signal that arrives just before a wait
without a time limit only after that wait.
"""


class StreamClosed(BaseException):
    """The signal to the core that the consumer of a stream has gone: the run stops at a durable point."""


def is_logged() -> bool:
    """Return whether the log takes events. If it does not, and nobody else listens, no event needs to be made."""
    return logger.isEnabledFor(logging.INFO)


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
        """Perform an effect that only concerns this process, and return its answer."""
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
        """Return a function without arguments that makes `call` in a thread, with a copy of this context, inside its hooks."""
        around = self.publish(call.announce) if call.announce is not None else ()
        context = contextvars.copy_context()
        return lambda: context.run(invoke, call, around)

    def submit(
        self, call: Call, then: Callable[[Pending], None] | None = None, open_calls: PendingSet | None = None
    ) -> Pending:
        """Start a sync call in its executor or in a thread. `then` is called there with the outcome.

        The caller can abandon a call to an executor. So it is added to `open_calls` before it begins.
        """
        if call.executor is None:
            return threads.submit(self.bind(call), then)
        from milepost.drivers.executors import ExecutorCall  # most programs never need it

        executor_call = ExecutorCall(call, self.publish(call.announce) if call.announce is not None else (), then)
        if open_calls is not None:
            open_calls.add(executor_call)
        executor_call.begin()
        return executor_call

    def mark_overdue(self, call: Call) -> None:
        """Tell the call, and whoever listens to events, that its time is over."""
        if call.context is not None:
            context = call.context
            context._stop = True
            self.publish(context._scope.send(NodeOverdue, context.node_id, context.visit, context.attempt))


def invoke(call: Call, around: Sequence[Any] = ()) -> Any:
    """Call user code with its context as the current one. A coroutine function returns its coroutine."""
    return run_within(call.context, call.fn, call.args, around)


def _put(ended: queue.SimpleQueue[tuple[Branch, Pending]], branch: Branch, pending: Pending) -> None:
    ended.put((branch, pending))


def is_awake(held: LeaseView | None) -> bool:
    """Return whether a sleep ends early: the run is lost or cancelled, or its owner is about to release it."""
    return held is not None and (held.is_over or (held.is_draining and not held.is_ending))


@contextmanager
def watched(held: LeaseView | None, wake: Callable[[], None]) -> Iterator[None]:
    """Call `wake`, in any thread, if the run is lost or cancelled while the block lasts."""
    if held is None:
        yield
        return
    held.watch(wake)
    try:
        yield
    finally:
        held.unwatch(wake)


def held_of(call: Call) -> LeaseView | None:
    """Return the lease of the run that makes the call, or None."""
    return None if call.context is None else call.context._scope.held
