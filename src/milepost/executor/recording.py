"""The announcement of what was recorded, and the handling of a store that fails: the same for nodes and steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from milepost.executor.context import Context
from milepost.executor.effects import Emit, Routine
from milepost.model.events import AttemptFailed, CheckpointFailed, CheckpointSaved
from milepost.model.failure import describe, first_line
from milepost.model.record import Record
from milepost.store import Release

if TYPE_CHECKING:
    from milepost.errors import MilepostError
    from milepost.executor.run import Run


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
        journal = run.journal
        release = Release("failed", first_line(error), degraded=journal.degraded, missed=journal.missed)
        journal.owe(release, lost)
