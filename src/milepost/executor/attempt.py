"""The attempts of one call of user code, until one succeeds or the policy gives up: the same for nodes and steps.

The caller says what is called, judges the answer and records failures. This module decides how often the call is tried,
for how long, and with which pauses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from milepost.errors import AttemptTimedOut, StatementError
from milepost.executor.context import Context
from milepost.executor.effects import Call, Routine, Sleep
from milepost.executor.run import Run
from milepost.model.ends import contained
from milepost.model.retry import Retry
from milepost.store import Statement

__all__ = ["AttemptBudget", "attempts", "cause_of", "pause"]

T = TypeVar("T")


class AttemptBudget(msgspec.Struct, eq=False):
    """The attempts and failures that a visit has used up so far."""

    visit: int = 1
    failures: int = 0
    """Failed attempts that count for the policy."""
    attempts: int = 0
    """All attempts before the next one, including those that a crash cut short."""
    pause: float = 0.0
    """Seconds left of the last back-off."""
    notes: list[str] = []
    """The ends of the attempts in this process, a line each."""


def attempts(
    run: Run,
    node_id: str,
    spent: AttemptBudget,
    policy: Retry | None,
    timeout: float | None,
    followed_at: str,
    prepare: Callable[[Context[Any], float | None], Call | Routine[Any]],
    judge: Callable[[Any], T],
    failed: Callable[[Context[Any], Exception, float | None, bool], Routine[None]],
    ends_at: float | None = None,
    catch: type[Exception] = Exception,
    commit: Callable[[Context[Any], T, float, tuple[Statement, ...]], Routine[None]] | None = None,
) -> Routine[tuple[Context[Any], T, float]]:
    """Perform the call or routine that `prepare` gives, again and again until it succeeds.

    Returns the context of the successful attempt, the value that `judge` made of its answer, and its duration in
    milliseconds.

    `judge` may refuse an answer by raising, which fails the attempt. `failed` records a failed attempt. It is given the
    attempt's context, the error, the seconds until the next attempt (None: there is none, and it must raise), and
    whether `judge` raised the error. `ends_at` (monotonic seconds, None: never) is the time at which something around
    all attempts is over: then `OutOfTime` is raised. Errors other than `catch` are no failures of the attempt, and end
    everything. If `catch` is not Exception, the policy is asked about the cause of the error instead of the error.

    `commit` records the value of an attempt that has asked for statements to count with its record, and is called for
    no other attempt; None: no attempt may ask. Its `StatementError` fails the attempt with that error, its other errors
    end everything.
    """
    options, clock = run.options, run.options.clock
    if timeout is None:
        timeout = options.timeout
    while True:
        limit = timeout
        if options.run_timeout is not None:
            limit = run.time_left(timeout)
        if ends_at is not None:
            limit = _until(ends_at, clock.monotonic(), limit)
        context: Context[Any] = Context(run.scope, node_id, spent.visit, spent.attempts + 1, followed_at, limit)
        if commit is not None:
            context._statements = None
        began = clock.monotonic()
        is_judging = False
        try:
            work = prepare(context, limit)
            returned = (yield work) if type(work) is Call else (yield from work)  # type: ignore[misc]
            is_judging = True
            made = contained(judge, returned)
        except catch as exc:
            if isinstance(exc, AttemptTimedOut) and limit != timeout:
                if ends_at is not None and clock.monotonic() >= ends_at:
                    raise OutOfTime(ends_at, is_running=exc.is_running) from exc
                raise run.out_of_time() from exc
            why = exc if catch is Exception or not isinstance(exc.__cause__, Exception) else exc.__cause__
            seconds = _counted(run, node_id, spent, policy, why)
            yield from failed(context, exc, seconds, is_judging)
            if seconds:
                yield from pause(run, seconds)
            continue
        duration = (clock.monotonic() - began) * 1000
        if commit is not None:
            # A thread of the function that asks for a statement from now on is too late, and gets an error.
            queued, context._statements = context._statements, ()
            if queued:
                try:
                    yield from commit(context, made, duration, tuple(queued))
                except StatementError as exc:
                    seconds = _counted(run, node_id, spent, policy, cause_of(exc))
                    yield from failed(context, exc, seconds, False)
                    if seconds:
                        yield from pause(run, seconds)
                    continue
        return context, made, duration


def cause_of(exc: Exception) -> Exception:
    """Return the error that an attempt failed with: for a statement the database's own error, else `exc` itself."""
    return exc.__cause__ if isinstance(exc, StatementError) and isinstance(exc.__cause__, Exception) else exc


def _counted(run: Run, node_id: str, spent: AttemptBudget, policy: Retry | None, why: Exception) -> float | None:
    """Count a failed attempt, and return the seconds until the next one; None if there is none."""
    spent.failures += 1
    spent.attempts += 1
    # A sync call that could not be stopped still runs; no other attempt may run beside it.
    is_running = isinstance(why, AttemptTimedOut) and why.is_running
    if policy is None or not policy.allows(spent.failures, why) or is_running:
        return None
    return policy.delay(spent.failures, run.run_id, node_id, spent.visit)


class OutOfTime(BaseException):
    """The end of the time of something around a call, at `ends_at`. Whoever set that time catches this exception."""

    def __init__(self, ends_at: float, *, is_running: bool = False) -> None:
        super().__init__("out of time")
        self.ends_at = ends_at
        self.is_running = is_running


def _until(ends_at: float, now: float, limit: float | None) -> float:
    left = ends_at - now
    if left <= 0:
        raise OutOfTime(ends_at)
    return left if limit is None else min(left, limit)


def pause(run: Run, seconds: float) -> Routine[None]:
    """Sleep, but not beyond the call's own time. Raise if the run is lost or cancelled meanwhile."""
    left = run.time_left(seconds) if run.options.run_timeout is not None else seconds
    yield Sleep(left, run.journal.held)
    if left < seconds:
        raise run.out_of_time()
    run.journal.check_hold()
