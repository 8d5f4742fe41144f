"""The consequences of an attempt: its outcome is written and announced, and a store that fails is handled.

This is the same for nodes, steps, merges and rollbacks. No user code runs here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from milepost.errors import AttemptTimedOut, StatementError
from milepost.executor.attempt import AttemptOutcome, UnitVisit, pause, run_attempt
from milepost.executor.context import Context
from milepost.executor.effects import Emit, Routine
from milepost.model.events import AttemptFailed, CheckpointFailed, CheckpointSaved
from milepost.model.failure import describe, first_line
from milepost.model.record import Record

if TYPE_CHECKING:
    from milepost.errors import MilepostError
    from milepost.executor.run import Run


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
