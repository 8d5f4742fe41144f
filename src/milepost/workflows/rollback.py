"""Rollbacks: they undo the steps of a run that is about to end as failed or cancelled, the newest step first.

They are best effort: if one fails, the others still run, and all errors are reported. Each outcome is recorded. So after a
crash only the remaining rollbacks run.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Collection
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, NamedTuple

from milepost.errors import CheckpointWriteError
from milepost.executor.attempt import AttemptOutcome, UnitVisit, perform
from milepost.executor.context import Context
from milepost.executor.effects import Call, Emit, Routine
from milepost.executor.history_values import AttemptBudget, PendingRecord
from milepost.model.failure import describe, failure_fields
from milepost.model.record import ROLLBACK, source_of
from milepost.model.results import RollbackError
from milepost.model.retry import Retry
from milepost.workflows.steps import Step, is_async
from milepost.workflows.visiting import refuse_async, refuse_unawaited

if TYPE_CHECKING:
    from milepost.workflows.run import Frame, StepRun

logger = logging.getLogger("milepost")


class Undo(NamedTuple):
    """The rollback of a step that has succeeded."""

    sequence: int
    step_id: str
    fn: Callable[..., Any]
    retry: Retry | None
    output: Any
    frame: Frame


def register(run: StepRun, step: Step[Any], step_id: str, sequence: int, output: Any, frame: Frame) -> None:
    """Register the rollback of a step. If the code no longer has the one in the record, `roll_back` reports that."""
    mods = step.modifiers
    if mods.rollback is not None:
        run.undos[step_id] = Undo(sequence, step_id, mods.rollback, mods.rollback_retry, output, frame)


def roll_back(run: StepRun, only: Collection[str] | None = None) -> Routine[None]:
    """Undo the steps that succeeded, in reverse order of their records; if `only` is given, just the steps in it.

    Only an error of the store stops this.
    """
    due = [undo for undo in run.undos.values() if only is None or undo.step_id in only]
    if only is None:
        # By the record these steps have a rollback, but the present code has none for them.
        for step_id, entry in run.recorded.rollbacks_due.items():
            if step_id not in run.undos and step_id not in run.rolled_back:
                name, text = entry.record.node_id, "the code has no rollback for this step any more"
                yield from _note(run, name, RollbackError(name, text), {"message": text})
        run.rollback_errors = (*_known_errors(run), *run.rollback_errors)
    for undo in due:
        refuse_async(run, undo.fn, undo.step_id)
    # Several rollbacks may have the number of one point. Of these the last is the newest, so the order is kept and reversed.
    for undo in sorted(due, key=lambda undo: undo.sequence)[::-1]:
        if not _is_undone(run, undo.step_id):
            with contextlib.suppress(RollbackFailed):
                yield from perform(RollbackVisit(run, undo))
        # It is removed only now, because a rollback that was interrupted (by a cancel, for example) is still due.
        run.undos.pop(undo.step_id, None)


def _is_undone(run: StepRun, step_id: str) -> bool:
    return step_id in run.recorded.undone or step_id in run.rolled_back


def _known_errors(run: StepRun) -> list[RollbackError]:
    """Return the errors of rollbacks that failed in earlier processes."""
    failed = [entry for entry in run.recorded.undone.values() if entry.fields.get("message") is not None]
    return [
        RollbackError(entry.record.node_id, str(entry.fields["message"]))
        for entry in sorted(failed, key=lambda entry: entry.sequence)
    ]


class RollbackVisit(UnitVisit):
    """The rollback of one step. Only its end is recorded, not its failed attempts."""

    __slots__ = ("source", "takes_output", "undo")
    is_announced = False
    run: StepRun

    def __init__(self, run: StepRun, undo: Undo) -> None:
        super().__init__(run, undo.step_id, AttemptBudget(), undo.frame.context._followed_at, undo.retry)
        self.undo = undo
        self.takes_output = _takes_output(undo.fn)
        self.source = source_of(run.origins, undo.sequence)

    def call(self, context: Context[Any], limit: float | None) -> Call:
        """Call the rollback with the context of the workflow and, if it takes two arguments, with the step's output."""
        undo, ctx = self.undo, self.undo.frame.context.view_for("rollback", self.undo.step_id)
        own = UndoContext(context._scope, context.node_id, context.visit, context.attempt, context._followed_at, limit)
        # A fork of a run copies its steps. Such a step was done once, so its rollback has the same key in every run.
        own._source = self.source
        own._tags = context._tags = {}  # those of the attempt
        return Call(undo.fn, (ctx, undo.output) if self.takes_output else (ctx,), own, is_async(undo.fn), limit)

    def check(self, returned: Any) -> None:
        """Refuse a coroutine that nobody has awaited."""
        refuse_unawaited(returned)

    def save(self, outcome: AttemptOutcome) -> Routine[None]:
        """Record that the step is undone."""
        self.run.keep_tags(outcome.context)
        return _note(self.run, self.node_id, None, {})

    def give_up(self, outcome: AttemptOutcome) -> Exception:
        """Make the error that ends the attempts."""
        return RollbackFailed()

    def save_failure(self, outcome: AttemptOutcome, final: Exception | None) -> Routine[None]:
        """Record, after the last attempt, that the step could not be undone."""
        error = outcome.error
        if final is not None and error is not None:
            failure = RollbackError(self.node_id, describe(error))
            yield from _note(self.run, self.node_id, failure, failure_fields(error), error)


class RollbackFailed(Exception):
    """The error that ends a failed rollback. It is recorded, and it stops nothing else."""


class UndoContext(Context[Any]):
    """The context of a rollback, which is not an attempt of its step."""

    __slots__ = ()

    @property
    def idempotency_key(self) -> str:
        """A key of 32 hex digits: the same for each attempt of this rollback, and different from the step's."""
        return hashlib.sha256(f"{super().idempotency_key}\0rollback".encode()).hexdigest()[:32]


def _note(
    run: StepRun, step_id: str, error: RollbackError | None, fields: dict[str, Any], failed: Exception | None = None
) -> Routine[None]:
    """Record how a rollback ended, and emit an event."""
    if error is not None:
        run.rollback_errors = (*run.rollback_errors, error)
        fields = {**fields, "message": error.error}
        logger.warning(
            "the rollback of step %r of run %r failed: %s", step_id, run.run_id, error.error,
            extra={"run_id": run.run_id, "node_id": step_id},
        )  # fmt: skip
    try:
        yield from run.record((PendingRecord(ROLLBACK, step_id, 1, fields),) if run.is_recorded else (), is_fatal=True)
    except CheckpointWriteError as exc:
        logger.warning("the rollback of step %r of run %r could not be recorded: %s", step_id, run.run_id, exc)
        raise
    run.rolled_back.add(step_id)
    if run.is_listening:
        from milepost.model.lifecycle import RollbackCompleted

        yield Emit(
            RollbackCompleted(run_id=run.run_id, timestamp=run.options.clock.time(), step_name=step_id, error=failed)
        )


def _takes_output(fn: Callable[..., Any]) -> bool:
    """Return whether a rollback takes `(ctx, output)` rather than `(ctx)`."""
    try:
        parameters = signature(fn).parameters.values()
    except (TypeError, ValueError):
        return True
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    if any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in parameters):
        return True
    required = [p for p in parameters if p.kind in kinds and p.default is Parameter.empty]
    return len(required) >= 2
