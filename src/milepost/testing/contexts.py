"""A context for unit tests of nodes: what `milepost.current()` gives, without a run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from milepost.clock import Clock
from milepost.context import Context, RunScope, current_context
from milepost.events import Event
from milepost.record import format_time
from milepost.store import Store
from milepost.testing.clock import FakeClock
from milepost.testing.stepping import Lease

__all__ = ["context"]


@contextmanager
def context(
    *,
    run_id: str = "test-run",
    node_id: str = "node",
    visit: int = 1,
    attempt: int = 1,
    deps: Any = None,
    store: Store | None = None,
    clock: Clock | None = None,
    logger: logging.Logger | logging.LoggerAdapter[Any] | None = None,
    timeout: float | None = None,
    now: datetime | None = None,
    cancel: str | None = None,
    events: list[Event] | None = None,
) -> Iterator[Context[Any]]:
    """Give a context, which `current()` finds while the block lasts: `with context(deps=fakes) as ctx: node(ctx, state)`.

    `clock` is a `FakeClock` of its own where None is given; `now` (aware) is what `ctx.now()` tells, None: the clock's
    time. `timeout` is in seconds from here on. `cancel` is the reason of an open cancel. `events` receives what
    the node tells by `ctx.progress` and `ctx.emit`.
    """
    clock = FakeClock() if clock is None else clock
    scope = RunScope(run_id, clock=clock, store=store, deps=deps, logger=logger)
    lease = Lease()
    lease.cancel = cancel
    scope.held = lease
    if events is not None:
        scope.publish = events.append
    followed_at = format_time(clock.time() if now is None else now.timestamp())
    made: Context[Any] = Context(scope, node_id, visit, attempt, followed_at, timeout)
    reset = current_context.set(made)
    try:
        yield made
    finally:
        current_context.reset(reset)
