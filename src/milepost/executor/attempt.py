"""The attempts of a visit: user code is called, its answer checked, and what has come of it recorded and announced.

A `UnitVisit` is one visit of a unit of work: a node, step, merge or rollback. It is a value that flows through two
functions until an attempt has succeeded or the policy gives up. `run_attempt` calls user code and checks its answer,
and never writes. `record_outcome` writes and announces the outcome, handles a store that fails, and never runs user
code. A front end says what a visit calls, how an answer is checked and what is recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from milepost.errors import AttemptTimedOut, StatementError
from milepost.executor.context import Context
from milepost.executor.effects import OVERDUE_GRACE, Call, Emit, Routine, Sleep
from milepost.executor.history_values import AttemptBudget
from milepost.executor.run import Run
from milepost.model.events import AttemptFailed, CheckpointFailed
from milepost.model.failure import contained, describe, first_line
from milepost.model.record import Record
from milepost.model.retry import Retry
from milepost.store import Statement

if TYPE_CHECKING:
    from milepost.errors import MilepostError


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
    """Milliseconds; for an attempt that succeeded, those of the work before it too."""
    max_attempts: int | None = None
    """The number of attempts that the policy allows; None: there is no policy."""
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

    def attempt_fields(self) -> dict[str, Any]:
        """Return the fields that a failure record has for the attempt, beside those for its error."""
        return {"duration_ms": round(self.duration * 1000) / 1000, "max_attempts": self.max_attempts}


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
    called_at = clock.monotonic()
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
        outcome.duration = (clock.monotonic() - called_at) * 1000
        outcome.is_refused = is_checking
        outcome.fail(exc)
        return outcome
    outcome.duration = (clock.monotonic() - (called_at if visit.began is None else visit.began)) * 1000
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


# -- what follows from an attempt ----------------------------------------------------------------------------


def perform(visit: UnitVisit) -> Routine[AttemptOutcome]:
    """Run attempts of a visit until one has succeeded and is recorded, and return its outcome.

    Raises the error that the visit gives up with.
    """
    while True:
        outcome = yield from run_attempt(visit)
        if (yield from record_outcome(visit, outcome)):
            return outcome


def record_outcome(visit: UnitVisit, outcome: AttemptOutcome) -> Routine[bool]:
    """Record and announce what has come of an attempt; return True if it has succeeded.

    After a failed attempt return False when it is time for the next one, or raise the error that the visit gives up
    with. An attempt whose statements fail has failed.
    """
    if outcome.error is None:
        try:
            yield from visit.save(outcome)
            return True
        except StatementError as exc:
            if not outcome.statements:
                raise
            outcome.fail(exc)
    error = outcome.error
    assert error is not None
    outcome.retry_in = _count(visit, error)
    outcome.max_attempts = None if visit.policy is None else visit.policy.max_attempts
    final = None
    if outcome.retry_in is None:
        final = visit.give_up(outcome)
        for note in visit.budget.notes:
            final.add_note(note)
    yield from visit.save_failure(outcome, final)
    if visit.is_announced:
        yield announce_failure(visit.run, outcome.context, error, outcome.retry_in)
    if final is not None:
        raise final from (error if final is not error else error.__cause__)
    visit.budget.notes.append(f"attempt {outcome.context.attempt} failed: {describe(error)}")
    if outcome.retry_in:
        yield from pause(visit.run, outcome.retry_in)
    return False


def _count(visit: UnitVisit, error: Exception) -> float | None:
    """Count a failed attempt, and return the seconds until the next one; None if there is none."""
    budget, policy = visit.budget, visit.policy
    budget.failures += 1
    budget.attempts += 1
    # A sync call that could not be stopped still runs; no other attempt may run beside it.
    is_running = isinstance(error, AttemptTimedOut) and error.is_running
    if policy is None or not policy.allows(budget.failures, error) or is_running:
        return None
    return policy.delay(budget.failures, visit.run.run_id, visit.node_id, budget.visit)


# -- events --------------------------------------------------------------------------------------------------


def announce_failure(run: Run, context: Context[Any], error: BaseException, retry_in: float | None) -> Emit:
    """Make the event of a failed attempt; `retry_in` None: no other attempt follows."""
    return Emit(
        AttemptFailed(
            run_id=run.run_id,
            timestamp=run.options.clock.time(),
            node_id=context.node_id,
            visit=context.visit,
            attempt=context.attempt,
            error=error,
            retry_in=retry_in,
        )
    )


def announce_checkpoint(run: Run, checkpoint: Record) -> Emit:
    """Make the event of a checkpoint that was written."""
    from milepost.model.lifecycle import CheckpointSaved

    return Emit(
        CheckpointSaved(
            run_id=run.run_id,
            timestamp=run.options.clock.time(),
            node_id=checkpoint.node_id,
            sequence=checkpoint.sequence,
            size=checkpoint.size,
        )
    )


# -- a store that fails --------------------------------------------------------------------------------------


def go_on_without(run: Run, op: str, node_id: str, error: MilepostError, *, is_fatal: bool) -> Routine[bool]:
    """Announce that a checkpoint could not be encoded or written; return whether the run goes on all the same.

    It goes on, degraded, only if `checkpoint_failure_fatal` is off and `is_fatal` is False. The caller then adds the visit
    to the journal's `missed`.
    """
    yield Emit(
        CheckpointFailed(run_id=run.run_id, timestamp=run.options.clock.time(), node_id=node_id, op=op, error=error)
    )
    if is_fatal or run.options.checkpoint_failure_fatal:
        return False
    run.journal.degraded = True
    return True


def keep_unrecorded(run: Run, error: BaseException, lost: MilepostError, *, is_end: bool) -> None:
    """Note on the `error` of a node or step that its failure could not be recorded: the store failed with `lost`.

    Losing that record must not hide why the node or step failed. `is_end`: the run has failed with it; then the release
    of the run is written later.
    """
    error.add_note(f"the failure itself could not be recorded: {describe(lost)}")
    if is_end:
        run.journal.owe(run.journal.make_release("failed", first_line(error)), lost)
