"""One attempt of a visit: user code is called and its answer checked, and nothing is written.

A `UnitVisit` is one visit of a unit of work: a node, step, merge or rollback. It is a value that flows through
`run_attempt`, which is here, and `milepost.executor.recording.record_outcome`, which writes what has come of the
attempt, until an attempt has succeeded or the policy gives up. A front end says what a visit calls, how an answer is
checked and what is recorded.
"""

from __future__ import annotations

from typing import Any

import msgspec

from milepost.errors import AttemptTimedOut, StatementError
from milepost.executor.context import Context
from milepost.executor.effects import OVERDUE_GRACE, Call, Routine, Sleep
from milepost.executor.history import AttemptBudget
from milepost.executor.run import Run
from milepost.model.failure import contained
from milepost.model.retry import Retry
from milepost.store import Statement


class AttemptOutcome(msgspec.Struct, eq=False):
    """The outcome of one attempt: a checked value, or the error that it failed with."""

    context: Context[Any]
    value: Any = None
    error: Exception | None = None
    op: str = "execute"
    """What failed: "execute", "timeout", or "commit" for the statements of the attempt."""
    is_refused: bool = False
    """True if the check of the answer raised the error."""
    duration: float = 0.0
    """Milliseconds, for an attempt that succeeded."""
    statements: tuple[Statement, ...] = ()
    """The statements that are to count with the record of a successful attempt."""
    retry_in: float | None = None
    """Seconds until the next attempt; None: there is none."""

    def fail(self, exc: Exception) -> None:
        """Turn the outcome into a failure with `exc`, or with its cause if `exc` only says what failed with it."""
        cause = exc.__cause__ if isinstance(exc, (StatementError, PartsFailed)) else None
        self.error = cause if isinstance(cause, Exception) else exc
        if isinstance(exc, StatementError):
            self.op = "commit"
        elif isinstance(self.error, AttemptTimedOut):
            self.op = "timeout"


class UnitVisit:
    """One visit of a unit of work: a node, step, merge or rollback."""

    __slots__ = (
        "began",
        "budget",
        "catches",
        "followed_at",
        "is_timed",
        "node_id",
        "over_at",
        "policy",
        "run",
        "takes_statements",
        "timeout",
    )

    is_announced = True
    """True if each failed attempt is announced."""

    def __init__(
        self,
        run: Run,
        node_id: str,
        budget: AttemptBudget,
        followed_at: str,
        policy: Retry | None = None,
        timeout: float | None = None,
    ) -> None:
        self.run = run
        self.node_id = node_id
        self.budget = budget
        self.followed_at = followed_at
        self.policy = policy
        self.timeout = timeout
        self.is_timed = True
        """True if the timeouts of the visit and of the run apply."""
        self.takes_statements = False
        """True if the code may ask for statements that count with its record."""
        self.catches: type[Exception] = Exception
        """The errors that fail an attempt. All others end everything."""
        self.over_at: float | None = None
        """The time (monotonic seconds) at which something around all attempts is over; None: never."""
        self.began: float | None = None
        """The time at which the work began that counts in the duration; None: the begin of the attempt."""

    def call(self, context: Context[Any], limit: float | None) -> Call | Routine[Any]:
        """Make the call or routine of one attempt, which has `limit` seconds (None: no limit)."""
        raise NotImplementedError

    def check(self, returned: Any) -> Any:
        """Make the value of the attempt of what its code returned. Any error refuses it, and fails the attempt."""
        return returned

    def save(self, outcome: AttemptOutcome) -> Routine[None]:
        """Record an attempt that succeeded. `StatementError` fails it, other errors end everything."""
        yield from ()

    def describe_end(self, error: BaseException, text: str) -> str:
        """Say how the last attempt ended; `text` describes the error, unless it is a timeout."""
        if isinstance(error, AttemptTimedOut):
            more = f", and still runs {OVERDUE_GRACE:g} s later" if error.is_running else ""
            return f"took longer than its timeout of {error.timeout:g} s{more}"
        failures = self.budget.failures
        return f"failed{f' after {failures} failed attempts' if failures > 1 else ''}: {text}"

    def give_up(self, outcome: AttemptOutcome) -> Exception:
        """Make the error with which the visit ends after its last attempt. Notes on those before it are added."""
        raise NotImplementedError

    def save_failure(self, outcome: AttemptOutcome, final: Exception | None) -> Routine[None]:
        """Record an attempt that failed. `final` is the error that ends the visit; None: another attempt follows."""
        yield from ()


def run_attempt(visit: UnitVisit) -> Routine[AttemptOutcome]:
    """Run the user code of a visit once, and return what has come of it. Nothing is written.

    Raises `OutOfTime` if the time of something around the attempt is over, and `RunTimeoutError` if the run's is.
    """
    run, budget = visit.run, visit.budget
    options, clock = run.options, run.options.clock
    timeout = limit = (options.timeout if visit.timeout is None else visit.timeout) if visit.is_timed else None
    if visit.is_timed and options.run_timeout is not None:
        limit = run.time_left(timeout)
    if visit.over_at is not None:
        limit = _until(visit.over_at, clock.monotonic(), limit)
    context: Context[Any] = Context(
        run.scope, visit.node_id, budget.visit, budget.attempts + 1, visit.followed_at, limit
    )
    if visit.takes_statements:
        context._statements = None
    began = clock.monotonic() if visit.began is None else visit.began
    outcome = AttemptOutcome(context)
    is_checking = False
    try:
        work = visit.call(context, limit)
        returned = (yield work) if type(work) is Call else (yield from work)  # type: ignore[misc]
        is_checking = True
        outcome.value = contained(visit.check, returned)
    except visit.catches as exc:
        if isinstance(exc, AttemptTimedOut) and limit != timeout:
            if visit.over_at is not None and clock.monotonic() >= visit.over_at:
                raise OutOfTime(visit.over_at, is_running=exc.is_running) from exc
            raise run.out_of_time() from exc
        outcome.is_refused = is_checking
        outcome.fail(exc)
        return outcome
    outcome.duration = (clock.monotonic() - began) * 1000
    if visit.takes_statements:
        # A thread of the function that asks for a statement from now on is too late, and gets an error.
        queued, context._statements = context._statements, ()
        if queued:
            outcome.statements = tuple(queued)
    return outcome


class PartsFailed(Exception):
    """The failure of work that is made of other steps. `__cause__` is the reason."""


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
