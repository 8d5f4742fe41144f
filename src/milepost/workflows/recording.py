"""The records that a run of a workflow writes: of its steps, and of how the run ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from milepost.errors import (
    CheckpointWriteError,
    DuplicateStepNameError,
    MilepostError,
    RunCancelled,
    SerializeStateError,
    StatementError,
    StateTypeError,
    StepError,
    StoreError,
    WorkflowError,
)
from milepost.executor.effects import Alone, Routine
from milepost.executor.recorded import PendingRecord
from milepost.executor.recording import announce_checkpoint, go_on_without, keep_unrecorded
from milepost.model.failure import failure_fields, first_line, place
from milepost.model.record import CHECKPOINT, FAILURE, FINISH, format_time
from milepost.store import Release, Statement
from milepost.workflows import rollback as undoing
from milepost.workflows.visiting import StepFailed, encoded_output

if TYPE_CHECKING:
    from milepost.workflows.run import StepRun

__all__ = ["ends_run", "fail", "finish", "record"]


def record(
    run: StepRun,
    drafts: tuple[PendingRecord, ...],
    *,
    is_fatal: bool = False,
    release: Release | None = None,
    statements: tuple[Statement, ...] = (),
    tags: dict[str, str] | None = None,
) -> Routine[tuple[int, str]]:
    """Write records; return the number and the time of the last of them.

    Records that fail to be written join the next write.

    `tags` go with this write, beside those that wait for the next one. With statements the records are written now or
    not at all: `StatementError` leaves everything as it was.
    """
    if statements:
        yield Alone()
    now = format_time(run.options.clock.time())
    if not run.is_recorded:
        return run.journal.next_number(), now
    before = run.unsaved
    waiting, run.unsaved = (*before, *drafts) if before else drafts, ()
    journal = run.journal
    records = tuple([journal.make_at(now, *draft) for draft in waiting])
    held = _tags(run)
    try:
        yield from journal.write(records, release, {**(held or {}), **tags} if tags else held, statements)
    except StatementError:
        run.unsaved = before
        if run.root is not None:
            run.root.context._tags = held
        raise
    except RunCancelled as exc:
        if release is not None or not drafts or drafts[-1].kind != CHECKPOINT:
            raise
        # The record is written: the step has succeeded, and is among those that are undone.
        run.cancel = exc.reason
    except CheckpointWriteError as exc:
        is_fatal = is_fatal or bool(statements) or release is not None
        node_id = drafts[-1].step_id if drafts else ""
        if not (yield from go_on_without(run, "append", node_id, exc, is_fatal=is_fatal)):
            raise
        run.unsaved = (*waiting, *run.unsaved)
        journal.missed = tuple(f"{draft.step_id}#{draft.visit}" for draft in run.unsaved if draft.kind == CHECKPOINT)
        return records[-1].sequence, now
    if journal.missed:
        journal.missed = ()
    if run.is_listening:
        for written in records:
            if written.kind == CHECKPOINT:
                yield announce_checkpoint(run, written)
    return (records[-1].sequence if records else journal.sequence), now


def _tags(run: StepRun) -> dict[str, str] | None:
    if run.root is None or not run.root.context._tags:
        return None
    tags, run.root.context._tags = run.root.context._tags, None
    return tags


def finish(run: StepRun, output: Any) -> Routine[None]:
    """Record the output of the workflow. An output that cannot be recorded fails it."""
    if not run.is_recorded:
        return
    data = encoded_output(run, run.flow, output)
    if isinstance(data, SerializeStateError):
        place(
            data,
            f"what workflow {run.flow.name!r} of run {run.run_id!r} returned cannot be recorded",
            "declare what it returns: -> Steps[...], or return what the codec carries",
        )
        raise data
    fields = {"status": "finished"}
    release = Release("finished", degraded=run.journal.degraded, missed=run.journal.missed)
    if run.unsaved:
        release = Release("finished")
    yield from record(run, (PendingRecord(FINISH, "", 1, fields, data),), release=release)


def fail(run: StepRun, exc: BaseException) -> Routine[BaseException]:
    """Record that the run failed and undo the steps with a rollback; return the error that it failed with."""
    if isinstance(exc, RunCancelled):
        run.journal.begin_to_end()
        yield from undoing.roll_back(run)
        return exc
    failed = exc if isinstance(exc, StepFailed) else None
    error: BaseException = exc if failed is None else failed.error
    if failed is not None:
        run.failed_step = failed.result
    if not ends_run(error) or not run.is_recorded:
        if ends_run(error):
            yield from undoing.roll_back(run)
        return error
    assert isinstance(error, MilepostError)
    draft = failed.draft if failed is not None else None
    if draft is None:
        at = failed.result.name if failed is not None else ""
        told = failure_fields(error.__cause__ or error)
        draft = PendingRecord(FAILURE, at, 1, {"op": "workflow" if not at else "execute", "attempt": 1, **told})
    draft = draft._replace(fields={**draft.fields, "final": True})
    try:
        if run.undos:
            yield from record(run, (draft,), is_fatal=True)
            run.journal.begin_to_end()
            yield from undoing.roll_back(run)
        else:
            reason = first_line(error)
            told = failure_fields(error.__cause__ or error)
            finish = PendingRecord(FINISH, "", 1, {"status": "failed", "reason": reason, **told})
            release = Release("failed", reason, degraded=run.journal.degraded, missed=run.journal.missed)
            yield from record(run, (draft, finish), is_fatal=True, release=release)
    except StoreError as lost:
        keep_unrecorded(run, error, lost, is_end=True)
    return error


def ends_run(error: BaseException) -> bool:
    """Return whether the workflow itself failed, and not its store, its owner or its time."""
    return isinstance(error, (WorkflowError, StepError, DuplicateStepNameError, StateTypeError, SerializeStateError))
