"""A context for unit tests of nodes and of a workflow's functions: `milepost.current()` returns it, without a run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from milepost.executor.context import RunScope, current_context
from milepost.model.events import Event
from milepost.model.ids import Clock
from milepost.model.record import format_time
from milepost.model.results import Outcome, SkipMarker, StepResult, StepType
from milepost.store import Statement, Store
from milepost.testing.clock import FakeClock
from milepost.testing.stepping import Lease
from milepost.workflows.context import WorkflowContext

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
    statements: list[Statement] | None = None,
    inputs: Mapping[str, Any] | None = None,
    results: Mapping[str, Any] | None = None,
    config: Any = None,
    version: int = 1,
    is_replaying: bool = False,
) -> Iterator[WorkflowContext[Any]]:
    """Make a context, which `current()` returns inside the block: `with context(deps=fakes) as ctx: node(ctx, state)`.

    `clock` None means a new `FakeClock`. `now` (aware) is the value of `ctx.now()`, None: the clock's time. `timeout`
    is in seconds from here on. `cancel` is the reason of an open cancel. `events` receives what the node sends by
    `ctx.progress` and `ctx.emit`, `statements` what it requests by `ctx.with_checkpoint`, which is not executed.

    For a workflow's functions (`when`, `branch`, `on_error`, rollbacks) `inputs` are the workflow's inputs by name, and
    `results` are the results of steps so far: outputs by step name, or a `StepResult` each.
    """
    clock = FakeClock() if clock is None else clock
    scope = RunScope(run_id, clock=clock, store=store, deps=deps, logger=logger)
    lease = Lease()
    lease.cancel = cancel
    scope.held = lease
    if events is not None:
        scope.publish = events.append
    followed_at = format_time(clock.time() if now is None else now.timestamp())
    made: WorkflowContext[Any] = WorkflowContext(
        scope,
        node_id,
        followed_at,
        inputs=inputs or {},
        results={name: _result(name, given) for name, given in (results or {}).items()},
        config=config,
        version=version,
        is_replaying=is_replaying,
    )
    made._visit, made._attempt = visit, attempt
    made._statements = [] if statements is None else statements
    made._ends_at = None if timeout is None else clock.monotonic() + timeout
    reset = current_context.set(made)
    try:
        yield made
    finally:
        current_context.reset(reset)


def _result(name: str, given: Any) -> StepResult:
    if isinstance(given, StepResult):
        return given
    outcome: Outcome = "skipped" if isinstance(given, SkipMarker) else "succeeded"
    return StepResult(name, StepType.PYTHON, True, given, outcome=outcome)
