"""The life of one step, from the request of the code to its record.

The order of effect is fixed: when, then the work with its retries and timeouts, on_error, skip_on_error, as_result; the
registration of its rollback and the result in one record; the checkpoint. Every decision is recorded before it has
consequences, and is answered from the record afterwards.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from milepost.errors import (
    AsyncNodeError,
    AttemptTimedOut,
    MilepostError,
    NoBranchMatchedError,
    PredicateTypeError,
    RunStopped,
    SerializeStateError,
    StatementError,
    StepError,
)
from milepost.executor.attempt import AttemptBudget, attempts, cause_of, pause
from milepost.executor.context import Context
from milepost.executor.effects import OVERDUE_GRACE, Call, Emit, HoldOver, Routine
from milepost.executor.journal import ask
from milepost.executor.recorded import PendingRecord, StepOutcome, StepRecord, parent_of
from milepost.executor.recording import announce_failure, go_on_without
from milepost.executor.waits import Parked
from milepost.model.events import StepCompleted
from milepost.model.failure import describe, failure_fields, first_line, message_of, place, shown, type_name
from milepost.model.record import CHECKPOINT, FAILURE, OWNER, ROUTE, format_time
from milepost.model.results import SkipMarker, StepResult, step_result
from milepost.store import Statement
from milepost.workflows.answers import answered, fallback
from milepost.workflows.groups import Composing, lasting
from milepost.workflows.matching import Arguments
from milepost.workflows.rollback import register
from milepost.workflows.steps import Calls, Invokes, Maps, Modifiers, Step
from milepost.workflows.visiting import (
    StepFailed,
    Unable,
    asked_with,
    check_begun,
    refuse_async,
    refuse_unawaited,
    started,
)

if TYPE_CHECKING:
    from milepost.workflows.run import Frame, StepRun

__all__ = ["do"]

logger = logging.getLogger("milepost")

_encode = msgspec.json.Encoder().encode
_UNSPENT = AttemptBudget()
"""The budget of a step's visit before anybody has asked what the visit has used up. It never changes."""


def do(
    run: StepRun, step: Step[Any], step_id: str, frame: Frame, *, is_child: bool = False, floor: int = -1
) -> Routine[StepResult]:
    """Answer a step from the record, or do it and record it.

    `is_child`: the step is part of a group, which gets a failure as a result instead of ending with it. A failure that
    was recorded up to `floor` no longer counts, and the step is done again.
    """
    return _Doing(run, step, step_id, frame, is_child=is_child).tell_end(floor)


# -- doing it ----------------------------------------------------------------------------------------------


class _Doing(Composing):
    """One step while it is being done, if it is not recorded yet."""

    __slots__ = ("began", "done", "is_child", "tried")

    def __init__(self, run: StepRun, step: Step[Any], step_id: str, frame: Frame, *, is_child: bool) -> None:
        self.run = run
        self.step = step
        self.step_id = step_id
        self.frame = frame
        self.is_child = is_child
        self.mods: Modifiers = step.modifiers
        self.arguments: Arguments = {}
        self.parts: Iterable[str] = ()
        self.spent = _UNSPENT
        self.floor = run.recorded.retried
        self.ends_at = frame.ends_at
        self.tried = 1
        self.began = 0.0
        self.is_open = False
        """True after the event of its beginning and before the event of its end."""
        self.done: StepResult | None = None
        """Its result, if that is recorded already, together with the statements of the successful attempt."""

    def tell_end(self, floor: int) -> Routine[StepResult]:
        """Do the step, and emit an event for an end without a result: a failure of the run, a cancel, an interruption.

        A step that waits has not ended, nor has one in which the run stopped at a breakpoint.
        """
        run = self.run
        try:
            return (yield from self.do(floor))
        except (GeneratorExit, Parked, RunStopped):
            raise
        except BaseException as exc:
            if run.is_listening and run.is_live and (self.is_open or isinstance(exc, StepFailed)):
                if isinstance(exc, StepFailed):
                    result = exc.result
                else:
                    why = run.journal.over() if isinstance(exc, HoldOver) else getattr(exc, "error", exc)
                    result = self._failure(message_of(why) or type_name(why), type_name(why))
                yield self._ended(result, (run.options.clock.monotonic() - self.began) * 1000)
            raise

    def do(self, floor: int) -> Routine[StepResult]:
        """Answer or do the step.

        Raises `StepFailed` if it fails and no modifier of the step turns the failure into a result.
        """
        run = self.run
        entry = run.recorded.done.get(self.step_id)
        if entry is not None and (entry.sequence > floor or entry.fields.get("outcome") != "failed"):
            return (yield from answered(run, self.step, self.step_id, entry, self.frame))
        check_begun(run, self.step, self.step_id, self.frame)
        if not run.is_live:
            run.pending.append((self.step_id, self.step))
        self.began = began = run.options.clock.monotonic()
        if run.store is not None:
            # The arguments are written down before any call: a function may change its arguments.
            self.arguments = asked_with(run, self.step)
        if self.mods.when is not None and self.step_id not in run.recorded.choices:
            skipped = yield from self._asked()
            if skipped is not None:
                return (yield from self._complete(SkipMarker(skipped), "skipped", began))
        given_up = self._given_up() if run.recorded.failures else None
        if given_up is not None:
            self.parts = run.recorded.begun(self.step_id, given_up.sequence)
            failed = self._recorded_failure(given_up)
        else:
            work = self.step.work
            if self.mods.rollback is not None:
                refuse_async(run, self.mods.rollback, self.step_id)
            try:
                working = self._called(work) if isinstance(work, Calls) else self._put_together()
                context, (output, data) = yield from working
                if self.done is None:
                    self.tried = context.attempt
                    if context._tags is not None:
                        _carry_tags(run, context)
                    if isinstance(data, SerializeStateError):
                        yield from self._unencoded(data)
            except StepFailed as exc:
                if exc.is_of_saving:
                    raise
                failed = exc
            else:
                if self.done is not None:
                    return self.done
                return (yield from self._complete(output, "succeeded", began, data))
        return (yield from self._after_failure(failed, began))

    def _after_failure(self, failed: StepFailed, began: float) -> Routine[StepResult]:
        """Apply the step's modifiers to its failure: on_error, skip_on_error, as_result.

        Raises the failure if none applies.
        """
        run, mods = self.run, self.mods
        if mods.on_error is not None:
            if failed.draft is not None:
                yield from run.live()
                yield from run.record((failed.draft,))
                failed.draft = None
            try:
                other = yield from fallback(run, self.step, self.step_id, self.frame, failed.result, self.parts)
            except StepFailed as exc:
                if exc.is_of_saving:
                    raise
                failed = yield from self._doubly_failed(failed, exc)
            else:
                return (yield from self._complete(other, "recovered", began, failed=failed))
        if mods.skip_on_error:
            return (yield from self._complete(SkipMarker("error_skipped"), "skipped", began, failed=failed))
        if mods.as_result or self.is_child:
            return (yield from self._complete(None, "failed", began, failed=failed))
        raise failed

    # -- when ------------------------------------------------------------------------------------------

    def _asked(self) -> Routine[str | None]:
        """Ask the predicate. Returns the reason why the step is skipped, or None."""
        run = self.run
        yield from run.live()
        run.enter(self.step_id)
        assert self.mods.when is not None
        try:
            verdict = yield from self._decide(self.mods.when, self.frame.context)
        except AsyncNodeError:
            raise
        except Exception as exc:
            logger.warning(
                "step %r of run %r is skipped, its predicate failed: %s", self.step_id, run.run_id, describe(exc),
                extra={"run_id": run.run_id, "node_id": self.step_id},
            )  # fmt: skip
            return "predicate_exception"
        if type(verdict) is not bool:
            raise PredicateTypeError(
                f"the predicate of step {self.step_id!r} of run {run.run_id!r} answered {shown(verdict)}: it must answer True "
                f"or False",
                run_id=run.run_id,
                node_id=self.step_id,
                step_name=self.step_id,
                step_type=self.step.step_type.value,
                returned=verdict,
            )
        if not verdict:
            return "predicate_false"
        visit = run.recorded.spent(self.step_id, self.frame.followed, run.options.clock.time()).visit
        yield from run.record((PendingRecord(ROUTE, self.step_id, visit, {"verdict": True}),))
        return None

    # -- the work, with its attempts -------------------------------------------------------------------

    def _given_up(self) -> StepRecord | None:
        """Return the failure that used up the step's attempts, if its handling is what comes next, or None."""
        if self.mods.on_error is None:
            return self.run.recorded.standing_failure(self.step_id) if parent_of(self.step_id) else None
        found = self.run.recorded.failures.get(self.step_id)
        if not found or not found[-1].fields.get("given_up"):
            return None
        done = self.run.recorded.done.get(self.step_id)
        is_over = found[-1].sequence <= self.run.recorded.retried or (
            done is not None and done.sequence > found[-1].sequence
        )
        return None if is_over else found[-1]

    def _recorded_failure(self, entry: StepRecord) -> StepFailed:
        told = entry.fields
        text = f"{told.get('error_type')}: {told.get('message')}"
        self.spent.visit = entry.record.visit
        error = StepError(
            f"step {self.step_id!r} of run {self.run.run_id!r} failed: {text}", run_id=self.run.run_id,
            node_id=self.step_id, step_name=self.step_id, step_type=self.step.step_type.value,
        )  # fmt: skip
        self.tried = int(told.get("attempt", 1))
        result = self._failure(str(told.get("message") or text), str(told.get("error_type")))
        return StepFailed(error, result, None)

    def _called(self, work: Calls) -> Routine[tuple[Context[Any], Any]]:
        """Call the function until it succeeds.

        Returns the context of that attempt, and a pair of its output and that as JSON.
        """
        run, step_id, frame = self.run, self.step_id, self.frame
        refuse_async(run, work.fn, step_id)
        if not run.is_live:
            yield from run.live()
        run.enter(step_id)
        policy = self.mods.retry or run.options.retry
        spent = self.spent = run.recorded.spent(step_id, frame.followed, run.options.clock.time())
        if spent.pause > 0:
            yield from pause(run, spent.pause)
        prepare = self._caller(work, is_retried=policy is not None)
        judge = _unrecorded if run.store is None else partial(self._encoded, run.flow.codec_of(work.fn))
        timeout, followed_at = self.mods.timeout, frame.context._followed_at
        context, made, _ = yield from attempts(
            run, step_id, spent, policy, timeout, followed_at, prepare, judge, self._failed, self.ends_at, Exception,
            self._commit,
        )  # fmt: skip
        return context, made

    def _caller(self, work: Calls, *, is_retried: bool) -> Callable[..., Call]:
        """Return a function that makes the step's calls. A step with retries gets fresh arguments for each call."""
        run = self.run
        kept: Any = None
        if is_retried:
            try:
                kept = copy.deepcopy((work.args, work.kwargs))
            except Exception:
                # Arguments that cannot be copied, a client say, are shared by all attempts.
                kept = None
        is_first = True

        def prepare(context: Context[Any], limit: float | None) -> Call:
            nonlocal is_first
            args, kwargs = work.args, work.kwargs
            if not is_first and kept is not None:
                args, kwargs = copy.deepcopy(kept)
            is_first = False
            fn = partial(work.fn, **kwargs) if kwargs else work.fn
            announce = None
            if run.is_listening:
                announce, self.is_open = started(run, self.step, context), True
            # A coroutine function was refused already if the driver cannot await.
            is_awaited = run.is_awaited and work.is_async
            return Call(fn, args, context, is_awaited, limit, announce, executor=work.executor or run.options.executor)

        return prepare

    def _put_together(self) -> Routine[tuple[Context[Any], Any]]:
        """Do a step that is made of others, as `_called` does a call.

        Its parts have their own timeouts, and a map's items their own retries.
        """
        run, step_id = self.run, self.step_id
        if not self._has_begun():
            if not run.is_live:
                yield from run.live()
            run.enter(step_id)
        self.spent = run.recorded.spent(step_id, self.frame.followed, run.options.clock.time())
        if self.spent.pause > 0 and run.is_live:
            yield from pause(run, self.spent.pause)
        policy = None if isinstance(self.step.work, Maps) else self.mods.retry
        followed_at = self.frame.context._followed_at
        context, made, _ = yield from attempts(
            run, step_id, self.spent, policy, None, followed_at, self._composed, _as_it_is, self._failed, None, Unable
        )
        return context, made

    def _commit(
        self, context: Context[Any], made: Any, duration: float, statements: tuple[Statement, ...]
    ) -> Routine[None]:
        """Record the step's success in the same write as the statements of its attempt."""
        output, data = made
        if isinstance(data, SerializeStateError):
            return  # it ends the run, as it does without statements
        self.tried = context.attempt
        self.done = yield from self._complete(
            output, "succeeded", self.began, data, statements=statements, tags=context._tags
        )

    def _has_begun(self) -> bool:
        """Return whether any part of the step is recorded, so that a replay can answer from it."""
        recorded = self.run.recorded
        return not self.run.is_live and (
            bool(recorded.children(self.step_id))
            or any(
                self.step_id in held for held in (recorded.choices, recorded.items, recorded.waits, recorded.failures)
            )
        )

    def _encoded(self, codec: Any, output: Any) -> tuple[Any, bytes | SerializeStateError]:
        refuse_unawaited(output)
        return output, self.run.encoded(output, codec, "output")

    def _unencoded(self, exc: SerializeStateError) -> Routine[None]:
        """Raise `StepFailed` for a result that cannot be recorded.

        It ends the run, because a resume would do everything after it on another basis.
        """
        run = self.run
        place(
            exc,
            f"the output of step {self.step_id!r} of run {run.run_id!r} cannot be recorded",
            "what was recorded before is kept: mend the step, then resume",
        )
        exc.run_id, exc.node_id = run.run_id, self.step_id
        yield from go_on_without(run, "encode", self.step_id, exc, is_fatal=True)
        told = failure_fields(exc)
        fields = {"op": "save", "attempt": self.tried, **told, "given_up": True}
        result = self._failure(message_of(exc), type_name(exc))
        raise StepFailed(exc, result, PendingRecord(FAILURE, self.step_id, self.spent.visit, fields))

    def _failed(self, context: Context[Any], exc: Exception, seconds: float | None, is_judging: bool) -> Routine[None]:
        """Record a failed attempt. Raises `StepFailed` if no other attempt follows."""
        run = self.run
        cause = exc.__cause__ if isinstance(exc, Unable) and exc.__cause__ is not None else cause_of(exc)
        yield from run.live()
        op = "timeout" if isinstance(cause, AttemptTimedOut) else "execute"
        if isinstance(exc, StatementError):
            op = "commit"
        retry_at = None if seconds is None else format_time(run.options.clock.time() + seconds)
        fields = {"op": op, "attempt": context.attempt, **failure_fields(cause), "retry_at": retry_at}
        self.tried = context.attempt
        draft = PendingRecord(FAILURE, self.step_id, context.visit, fields)
        error: MilepostError | None = None
        if seconds is None:
            error = self._step_error(cause, context.attempt)
            draft = draft._replace(fields={**fields, "given_up": True})
        else:
            self.floor, _ = yield from run.record((draft,))
            if not isinstance(self.step.work, Calls):
                yield from self._take_in()
        yield announce_failure(run, context, cause, seconds)
        if error is not None:
            result = self._failure(message_of(cause) or type_name(cause), type_name(cause))
            raise StepFailed(error, result, draft) from cause
        self.spent.notes.append(f"attempt {context.attempt} failed: {describe(cause)}")

    def _take_in(self) -> Routine[None]:
        """Read this process's own records, so that the next attempt does not repeat the parts that succeeded."""
        run = self.run
        if run.store is None:
            return
        for record in (yield from ask(run.store, "read", run.run_id, after=run.recorded.newest)):
            if record.kind != OWNER:
                run.recorded.add(record)

    def _step_error(self, cause: BaseException, attempt: int) -> MilepostError:
        facts = {
            "run_id": self.run.run_id,
            "node_id": self.step_id,
            "step_name": self.step_id,
            "step_type": self.step.step_type.value,
            "attempt": attempt,
        }
        if type(cause) in (NoBranchMatchedError, PredicateTypeError) and getattr(cause, "node_id", "") == self.step_id:
            for name, value in facts.items():
                setattr(cause, name, value)
            assert isinstance(cause, MilepostError)
            return cause
        times = f" after {self.spent.failures} failed attempts" if self.spent.failures > 1 else ""
        if isinstance(cause, AttemptTimedOut):
            more = f", and still runs {OVERDUE_GRACE:g} s later" if cause.is_running else ""
            what = f"took longer than its timeout of {cause.timeout:g} s{more}"
        else:
            what = f"failed{times}: {_told(cause)}"
        error = StepError(f"step {self.step_id!r} of run {self.run.run_id!r} {what}{self._advice()}", **facts)
        error.__cause__ = cause
        for note in self.spent.notes:
            error.add_note(note)
        return error

    def _advice(self) -> str:
        return (
            "; mend the cause, then resume or retry"
            if self.run.store is not None and not parent_of(self.step_id)
            else ""
        )

    def _failure(self, error: str, error_type: str, duration: float = 0.0) -> StepResult:
        return StepResult(
            self.step.name, self.step.step_type, False, None, duration, error, error_type, "failed", self.tried
        )

    def _doubly_failed(self, first: StepFailed, second: StepFailed) -> Routine[StepFailed]:
        """Make the failure of a step whose on_error failed as well."""
        if second.draft is not None:
            yield from self.run.record((second.draft,))
        text = f"{first.result.error}; and what its on_error gave failed too: {second.result.error}"
        error = StepError(
            f"step {self.step_id!r} of run {self.run.run_id!r} failed: {text}{self._advice()}",
            run_id=self.run.run_id,
            node_id=self.step_id,
            step_name=self.step_id,
            step_type=self.step.step_type.value,
            attempt=self.tried,
        )
        error.__cause__ = second.error.__cause__ or second.error
        for note in getattr(first.error, "__notes__", ()):
            error.add_note(note)
        error.add_note(f"the step itself failed: {describe(first.error.__cause__ or first.error)}")
        result = self._failure(text, str(second.result.error_type))
        fields = {"op": "on_error", "attempt": self.tried, **failure_fields(error)}
        return StepFailed(error, result, PendingRecord(FAILURE, self.step_id, self.spent.visit, fields))

    # -- recording -------------------------------------------------------------------------------------

    def _complete(
        self,
        output: Any,
        outcome: Any,
        began: float,
        data: bytes | None = None,
        failed: StepFailed | None = None,
        statements: tuple[Statement, ...] = (),
        tags: dict[str, str] | None = None,
    ) -> Routine[StepResult]:
        """Record how the step ended, with its rollback if it has one, and emit the event."""
        run, step, mods = self.run, self.step, self.mods
        if not run.is_live:
            yield from run.live()
        duration = (run.options.clock.monotonic() - began) * 1000
        is_good = outcome != "failed"
        error = error_type = None
        if failed is not None and outcome != "recovered":
            error, error_type = failed.result.error, failed.result.error_type
        rounded = round(duration * 1000) / 1000
        if outcome == "succeeded" and isinstance(step.work, Invokes):
            output = lasting(output, rounded)
        result = step_result(
            step.name,
            step.work.step_type,
            is_good,
            output,
            rounded,
            error,
            error_type,
            outcome,
            self.tried,
        )
        if self.frame.context._tags is not None:
            _carry_tags(run, self.frame.context)
        undoes = mods.rollback is not None and outcome in ("succeeded", "recovered")
        if run.store is None:
            sequence, now = run.journal.next_number(), format_time(run.options.clock.time())
        else:
            draft = self._draft(result, data, is_undoable=undoes)
            sequence, now = yield from run.record(
                (draft,) if failed is None or failed.draft is None else (failed.draft, draft),
                is_fatal=mods.checkpoint,
                statements=statements,
                tags=tags,
            )
        run.recorded.visits[self.step_id] = self.spent.visit
        if undoes:
            register(run, step, self.step_id, sequence, output, self.frame)
        if self.step_id == self.frame.prefix + step.name:
            self.frame.has_replayed(result, sequence, now)
        if run.is_listening:
            yield self._ended(result, duration)
        run.leave(self.step_id)
        return result

    def _ended(self, result: StepResult, duration: float) -> Emit:
        self.is_open = False
        return Emit(
            StepCompleted(
                run_id=self.run.run_id,
                timestamp=self.run.options.clock.time(),
                step_name=self.step_id,
                step_type=self.step.step_type.value,
                success=result.success,
                duration_ms=duration,
                outcome=result.outcome,
                _load=lambda: result,
            )
        )

    def _draft(self, result: StepResult, data: bytes | None, *, is_undoable: bool) -> PendingRecord:
        if data is None:
            data = _encode(result.output.to_dict() if isinstance(result.output, SkipMarker) else None)
        kept = StepOutcome(
            result.name,
            result.step_type,
            result.success,
            msgspec.Raw(data),
            result.duration_ms,
            result.error,
            result.error_type,
            result.outcome,
            result.attempts,
        )
        fields = {
            "next_node": None,
            "attempt": result.attempts,
            "duration_ms": result.duration_ms,
            "step_type": kept.step_type,
            "outcome": result.outcome,
            "args": self.arguments or None,
            "rollback": is_undoable or None,
            "marked": self.mods.checkpoint or None,
        }
        return PendingRecord(CHECKPOINT, self.step_id, self.spent.visit, fields, _encode(kept))


# -- parts -------------------------------------------------------------------------------------------------


def _told(cause: BaseException) -> str:
    """Describe the cause of a step's failure.

    For a failure inside it, this is the innermost failed step, whose id says where.
    """
    if not isinstance(cause, StepError):
        return describe(cause)
    while isinstance(cause.__cause__, StepError) and cause.__cause__.node_id:
        cause = cause.__cause__
    return first_line(cause)


def _unrecorded(output: Any) -> tuple[Any, None]:
    """Return an output that is not encoded, because nothing is recorded."""
    refuse_unawaited(output)
    return output, None


def _carry_tags(run: StepRun, context: Context[Any]) -> None:
    """Move tags that code below the run's own has added to the run's next write."""
    if run.root is None or context is run.root.context:
        return
    added, context._tags = context._tags, None
    run.root.context._tags = {**(run.root.context._tags or {}), **(added or {})}


def _as_it_is(made: tuple[Any, bytes | SerializeStateError | None]) -> tuple[Any, bytes | SerializeStateError | None]:
    """Return the output of a step that is made of others, and that output as JSON, unchanged."""
    return made
