"""The life of one step, from the request of the code to its record.

The order of effect is fixed: when, then the work with its retries and timeouts, on_error, skip_on_error, as_result; the
registration of its rollback and the result in one record; the checkpoint. Every decision is recorded before it has
consequences, and is answered from the record afterwards.
"""

from __future__ import annotations

import copy
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from milepost.errors import (
    AsyncNodeError,
    MilepostError,
    NoBranchMatchedError,
    PredicateTypeError,
    RunStopped,
    SerializeStateError,
    StepError,
    cut,
    shown,
)
from milepost.executor.attempt import AttemptOutcome, PartsFailed, go_on_without, pause, perform
from milepost.executor.context import Context
from milepost.executor.effects import Call, Emit, HoldOver, Routine, ask
from milepost.executor.history_reader import followed_by
from milepost.executor.history_values import PendingRecord, StepOutcome, StepRecord, parent_of
from milepost.executor.waits import Parked
from milepost.model.failure import (
    MAX_LINE,
    bases_of,
    describe,
    failure_fields,
    first_line,
    message_of,
    place,
    thrown_again,
    type_name,
)
from milepost.model.record import CHECKPOINT, FAILURE, OWNER, ROUTE, Record, format_time
from milepost.model.results import SkipMarker, StepResult, step_result
from milepost.store import Statement
from milepost.workflows.answers import answered, fallback, register_own_parts, register_parts
from milepost.workflows.groups import PartsVisit, lasting
from milepost.workflows.matching import described, differs, how_to_agree, non_determinism
from milepost.workflows.rollback import register
from milepost.workflows.steps import Calls, Invokes, Maps, Step
from milepost.workflows.visiting import (
    StepFailed,
    asked_with,
    check_begun,
    refuse_async,
    refuse_unawaited,
    started,
)

if TYPE_CHECKING:
    from milepost.workflows.run import Frame, StepRun

logger = logging.getLogger("milepost")

_encode = msgspec.json.Encoder().encode
ADVICE = "; mend the cause, then resume or retry"


def do(
    run: StepRun, step: Step[Any], step_id: str, frame: Frame, *, is_child: bool = False, floor: int = -1
) -> Routine[StepResult]:
    """Answer a step from the record, or do it and record it.

    `is_child`: the step is part of a group, which gets a failure as a result instead of ending with it. A failure that
    was recorded up to `floor` no longer counts, and the step is done again.
    """
    return StepVisit(run, step, step_id, frame, is_child=is_child).tell_end(floor)


# -- doing it ----------------------------------------------------------------------------------------------


class StepVisit(PartsVisit):
    """One visit of a step, if its result is not recorded yet."""

    __slots__ = ("arguments_copy", "begun_at", "done", "is_child", "is_first", "tried")

    def __init__(self, run: StepRun, step: Step[Any], step_id: str, frame: Frame, *, is_child: bool) -> None:
        super().__init__(run, step, step_id, frame)
        self.is_child = is_child
        self.tried = 1
        self.begun_at = 0.0
        self.arguments_copy: Any = None
        """The arguments of a step with retries, for its further attempts; None: all attempts have the same ones."""
        self.is_first = True
        """True before the step's first call in this process."""
        self.done: StepResult | None = None
        """Its result, once that is recorded."""

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
                yield self._ended(result, (run.options.clock.monotonic() - self.begun_at) * 1000)
            raise

    def do(self, floor: int) -> Routine[StepResult]:
        """Answer or do the step.

        Raises `StepFailed` if it fails and no modifier of the step turns the failure into a result.
        """
        run = self.run
        entry = run.recorded.done.get(self.node_id)
        if entry is not None and (entry.sequence > floor or entry.fields.get("outcome") != "failed"):
            return (yield from answered(run, self.step, self.node_id, entry, self.frame))
        check_begun(run, self.step, self.node_id, self.frame)
        if run.is_recorded:
            # The arguments are written down before any call: a function may change its arguments.
            self.arguments = asked_with(run, self.step)
        given_up = self._given_up() if run.recorded.failures else None
        if given_up is not None and (self.mods.on_error is None or given_up.fields.get("op") == "on_error"):
            failed = self._thrown_again(given_up)
            if not run.is_live:
                yield from register_parts(run, self.step, self.node_id, self.frame)
            raise failed
        if not run.is_live:
            run.pending.append((self.node_id, self.step))
        self.begun_at = began = run.options.clock.monotonic()
        if self.mods.when is not None and self.node_id not in run.recorded.choices:
            skipped = yield from self._asked()
            if skipped is not None:
                return (yield from self._complete(SkipMarker(skipped), "skipped", began))
        elif self.mods.when is not None:
            # The predicate's answer let the step begin; that of a branch's own predicates came later.
            answer = run.recorded.choices[self.node_id]
            self.followed = max(self.followed, answer.sequence if "verdict" in answer.fields else 0)
        if given_up is not None:
            self.parts = run.recorded.begun(self.node_id, given_up.sequence)
            failed = self._recorded_failure(given_up)
            if not run.is_live:
                # What its on_error gave is done next. That registers its own rollbacks.
                yield from register_own_parts(run, self.step, self.node_id, self.frame)
        else:
            work = self.step.work
            if self.mods.rollback is not None:
                refuse_async(run, self.mods.rollback, self.node_id)
            try:
                yield from self._enter_call(work) if isinstance(work, Calls) else self._enter_parts()
                yield from perform(self)
            except StepFailed as exc:
                if exc.is_of_saving:
                    raise
                failed = exc
            else:
                assert self.done is not None
                return self.done
        return (yield from self._after_failure(failed, began, 0 if given_up is None else given_up.sequence))

    def _after_failure(self, failed: StepFailed, began: float, recorded_at: int) -> Routine[StepResult]:
        """Apply the step's modifiers to its failure: on_error, skip_on_error, as_result.

        `recorded_at` is the number of the failure's record; 0: it is not recorded yet. Raises the failure if no modifier
        applies.
        """
        run, mods = self.run, self.mods
        if mods.on_error is not None:
            if failed.draft is not None:
                yield from run.live()
            yield from self._save_last(failed)
            try:
                frame = self.frame.inside(self.frame.ends_at, recorded_at or run.journal.sequence)
                other = yield from fallback(run, self.step, self.node_id, frame, failed.result, self.parts)
            except StepFailed as exc:
                if exc.is_of_saving:
                    raise
                failed = yield from self._doubly_failed(failed, exc)
            else:
                return (yield from self._complete(other, "recovered", began, failed=failed))
        if mods.skip_on_error:
            return (yield from self._complete(SkipMarker("error_skipped"), "skipped", began, failed=failed))
        if mods.as_result or self.is_child:
            run.error_bases[self.node_id] = getattr(failed.error, "error_bases", ())
            return (yield from self._complete(None, "failed", began, failed=failed))
        failed.arguments = self.arguments
        raise failed

    # -- when ------------------------------------------------------------------------------------------

    def _asked(self) -> Routine[str | None]:
        """Ask the predicate. Returns the reason why the step is skipped, or None."""
        run = self.run
        yield from run.live()
        run.enter(self.node_id)
        assert self.mods.when is not None
        try:
            verdict = yield from self._decide(self.mods.when, "when")
        except AsyncNodeError:
            raise
        except Exception as exc:
            logger.warning(
                "step %r of run %r is skipped, its predicate failed: %s", self.node_id, run.run_id, describe(exc),
                extra={"run_id": run.run_id, "node_id": self.node_id},
            )  # fmt: skip
            return "predicate_exception"
        if type(verdict) is not bool:
            error = PredicateTypeError(
                f"the predicate of step {self.node_id!r} of run {run.run_id!r} answered {shown(verdict)}: it must answer True "
                f"or False",
                node_id=self.node_id,
                returned=verdict,
            )
            raise self._refused(error)
        if not verdict:
            return "predicate_false"
        visit = run.spent(self.node_id, self.frame.followed).visit
        self.followed, _ = yield from run.record((PendingRecord(ROUTE, self.node_id, visit, {"verdict": True}),))
        return None

    def _refused(self, error: PredicateTypeError) -> StepFailed:
        """Make the failure of a step whose predicate gave no answer. No modifier of the step applies to it."""
        run = self.run
        fields = {"op": "when", "attempt": 1, **failure_fields(error), "given_up": True}
        visit = run.spent(self.node_id, self.frame.followed).visit
        result = self._failure(message_of(error), type_name(error))
        failed = StepFailed(self._step_error(error, 1), result, PendingRecord(FAILURE, self.node_id, visit, fields))
        failed.arguments = self.arguments
        return failed

    # -- the work, with its attempts -------------------------------------------------------------------

    def _given_up(self) -> StepRecord | None:
        """Return the failure that used up the step's attempts, if its handling is what comes next, or None."""
        standing = self.run.recorded.standing_failure(self.node_id)
        if self.mods.on_error is None or (standing is not None and standing.fields.get("op") == "on_error"):
            return standing
        return self.run.recorded.given_up(self.node_id)

    def _thrown_again(self, entry: StepRecord) -> StepFailed:
        """Make the failure that the code was given before; refuse it if the step is asked for with other arguments."""
        run, failure, mine = self.run, entry.fields, self.step.work.step_type.value
        if "text" in failure:
            was = described(self.node_id, str(failure.get("step_type")), failure.get("args"))
            is_other = self.mods.compare_args is not False and differs(failure.get("args"), self.arguments)
            if failure.get("step_type") != mine or is_other:
                raise non_determinism(
                    run.run_id, self.frame.position - 1, was, described(self.node_id, mine, self.arguments),
                    how_to_agree(failure.get("args"), self.arguments) if is_other else "",
                )  # fmt: skip
        self.tried = int(failure.get("attempt") or 1)
        text = str(failure.get("message") or failure.get("error_type"))
        failed = StepFailed(
            thrown_again(run.run_id, failure, self.node_id), self._failure(text, str(failure.get("error_type"))), None
        )
        failed.timestamp, failed.sequence = str(failure.get("timestamp")), entry.sequence
        return failed

    def _recorded_failure(self, entry: StepRecord) -> StepFailed:
        fields = entry.fields
        text = f"{fields.get('error_type')}: {fields.get('message')}"
        self.budget.visit = entry.record.visit
        error = StepError(
            f"step {self.node_id!r} of run {self.run.run_id!r} failed: {text}", run_id=self.run.run_id,
            node_id=self.node_id, step_name=self.node_id, step_type=self.step.step_type.value,
            error_bases=tuple(fields.get("error_bases") or ()),
        )  # fmt: skip
        self.tried = int(fields.get("attempt", 1))
        result = self._failure(str(fields.get("message") or text), str(fields.get("error_type")))
        return StepFailed(error, result, None)

    def _enter_call(self, work: Calls) -> Routine[None]:
        """Enter a step that calls a function."""
        run, step_id = self.run, self.node_id
        refuse_async(run, work.fn, step_id)
        if not run.is_live:
            yield from run.live()
        run.enter(step_id)
        self.policy, self.timeout = self.mods.retry or run.options.retry, self.mods.timeout
        self.over_at, self.takes_statements = self.ends_at, True
        self.budget = run.spent(step_id, self.followed)
        if self.budget.pause > 0:
            yield from pause(run, self.budget.pause)
        if self.policy is not None:
            try:
                self.arguments_copy = copy.deepcopy((work.args, work.kwargs))
            except Exception:
                # Arguments that cannot be copied, a client say, are shared by all attempts.
                self.arguments_copy = None

    def _enter_parts(self) -> Routine[None]:
        """Enter a step that is made of others. Its parts have their own timeouts, and a map's items their own retries."""
        run, step_id = self.run, self.node_id
        if not self._has_begun():
            if not run.is_live:
                yield from run.live()
            run.enter(step_id)
        self.catches = PartsFailed
        self.policy = None if isinstance(self.step.work, Maps) else self.mods.retry
        self.budget = run.spent(step_id, self.followed)
        if self.budget.pause > 0 and run.is_live:
            yield from pause(run, self.budget.pause)

    def call(self, context: Context[Any], limit: float | None) -> Call | Routine[Any]:
        """Call the step's function, or do the steps that it is made of. Each attempt gets fresh arguments."""
        run, work = self.run, self.step.work
        if not isinstance(work, Calls):
            return self._composed(context)
        args, kwargs = work.args, work.kwargs
        if not self.is_first and self.arguments_copy is not None:
            args, kwargs = copy.deepcopy(self.arguments_copy)
        self.is_first = False
        fn = partial(work.fn, **kwargs) if kwargs else work.fn
        announce = None
        if run.is_listening:
            announce, self.is_open = started(run, self.step, context), True
        # A coroutine function was refused already if the driver cannot await.
        is_awaited = run.is_awaited and work.is_async
        return Call(fn, args, context, is_awaited, limit, announce, executor=work.executor or run.options.executor)

    def check(self, returned: Any) -> tuple[Any, bytes | SerializeStateError | None]:
        """Make the pair of the output and that as JSON. Work that is made of other steps gives it as it is."""
        run, work = self.run, self.step.work
        if not isinstance(work, Calls):
            pair: tuple[Any, bytes | SerializeStateError | None] = returned
            return pair
        refuse_unawaited(returned)
        if not run.is_recorded:
            return returned, None
        return returned, run.journal.encode(returned, run.flow.codec_of(work.fn), "output")

    def save(self, outcome: AttemptOutcome) -> Routine[None]:
        """Record the step's success, in the same write as the statements of its attempt."""
        (output, data), context, statements = outcome.value, outcome.context, outcome.statements
        self.tried = context.attempt
        if isinstance(data, SerializeStateError):
            self.run.keep_tags(context)
            yield from self._unencoded(data)
        elif statements:
            # If they fail, the tags of the attempt are dropped with them.
            self.done = yield from self._complete(
                output, "succeeded", self.begun_at, data, statements=statements, tags=context._tags
            )
        else:
            self.run.keep_tags(context)
            self.done = yield from self._complete(output, "succeeded", self.begun_at, data)

    def _has_begun(self) -> bool:
        """Return whether any part of the step is recorded, so that a replay can answer from it."""
        recorded = self.run.recorded
        return not self.run.is_live and (
            bool(recorded.children(self.node_id))
            or any(
                self.node_id in held for held in (recorded.choices, recorded.items, recorded.waits, recorded.failures)
            )
        )

    def _unencoded(self, exc: SerializeStateError) -> Routine[None]:
        """Raise `StepFailed` for a result that cannot be recorded.

        It ends the run, because a resume would do everything after it on another basis.
        """
        run = self.run
        place(
            exc,
            f"the output of step {self.node_id!r} of run {run.run_id!r} cannot be recorded",
            "what was recorded before is kept: mend the step, then resume",
        )
        exc.run_id, exc.node_id = run.run_id, self.node_id
        yield from go_on_without(run, "encode", self.node_id, exc, is_fatal=True)
        error_fields = failure_fields(exc)
        fields = {"op": "save", "attempt": self.tried, **error_fields, "given_up": True}
        result = self._failure(message_of(exc), type_name(exc))
        raise StepFailed(exc, result, PendingRecord(FAILURE, self.node_id, self.budget.visit, fields))

    def give_up(self, outcome: AttemptOutcome) -> StepFailed:
        """Make the step's failure after its last attempt."""
        cause, self.tried = outcome.error, outcome.context.attempt
        assert cause is not None
        error = self._step_error(cause, self.tried)
        result = self._failure(message_of(cause) or type_name(cause), type_name(cause))
        return StepFailed(error, result, self._failure_draft(outcome, None, is_last=True))

    def save_failure(self, outcome: AttemptOutcome, final: Exception | None) -> Routine[None]:
        """Record a failed attempt. Whoever handles the failure of the step writes the last one."""
        run = self.run
        yield from run.live()
        self.tried = outcome.context.attempt
        if final is None:
            assert outcome.retry_in is not None
            retry_at = format_time(run.options.clock.time() + outcome.retry_in)
            self.floor, _ = yield from run.record((self._failure_draft(outcome, retry_at, is_last=False),))
            if not isinstance(self.step.work, Calls):
                yield from self._take_in()

    def _failure_draft(self, outcome: AttemptOutcome, retry_at: str | None, *, is_last: bool) -> PendingRecord:
        assert outcome.error is not None
        fields = {
            "op": outcome.op,
            "attempt": outcome.context.attempt,
            **failure_fields(outcome.error),
            **outcome.attempt_fields(),
            "retry_at": retry_at,
        }
        if is_last:
            fields["given_up"] = True
        if self.ended_by is not None:
            fields["of"] = self.ended_by
        return PendingRecord(FAILURE, self.node_id, outcome.context.visit, fields)

    def _take_in(self) -> Routine[None]:
        """Read this process's own records, so that the next attempt does not repeat the parts that succeeded."""
        run = self.run
        if not run.is_recorded:
            return
        records: list[Record] = yield from ask(run.store, "read", run.run_id, after=run.recorded.newest)
        run.recorded = followed_by(run.recorded, (record for record in records if record.kind != OWNER))
        visits = run.progress.visits
        visits.update({node_id: max(last, visits.get(node_id, 0)) for node_id, last in run.recorded.visits.items()})

    def _step_error(self, cause: BaseException, attempt: int) -> MilepostError:
        facts = {
            "run_id": self.run.run_id,
            "node_id": self.node_id,
            "step_name": self.node_id,
            "step_type": self.step.step_type.value,
            "attempt": attempt,
            "error_type": type_name(cause),
            "error_bases": bases_of(cause),
        }
        if type(cause) in (NoBranchMatchedError, PredicateTypeError) and getattr(cause, "node_id", "") == self.node_id:
            for name, value in facts.items():
                setattr(cause, name, value)
            cause.message = message_of(cause)[:MAX_LINE]  # type: ignore[attr-defined]
            assert isinstance(cause, MilepostError)
            return cause
        what = self.describe_end(cause, _cause_text(cause))
        text = f"step {self.node_id!r} of run {self.run.run_id!r} {what}"
        error = StepError(f"{cut(text, MAX_LINE - len(ADVICE))}{self._advice()}", **facts)
        error.__cause__, error.message = cause, message_of(cause)[:MAX_LINE]
        return error

    def _advice(self) -> str:
        return ADVICE if self.run.is_recorded and not parent_of(self.node_id) else ""

    def _failure(self, error: str, error_type: str, duration: float = 0.0) -> StepResult:
        return StepResult(
            self.step.name, self.step.step_type, False, None, duration, error, error_type, "failed", self.tried
        )

    def _doubly_failed(self, first: StepFailed, second: StepFailed) -> Routine[StepFailed]:
        """Make the failure of a step whose on_error failed as well."""
        yield from self._save_last(second)
        text = f"{first.result.error}; and what its on_error gave failed too: {second.result.error}"
        what = cut(f"step {self.node_id!r} of run {self.run.run_id!r} failed: {text}", MAX_LINE - len(ADVICE))
        error = StepError(
            f"{what}{self._advice()}",
            run_id=self.run.run_id,
            node_id=self.node_id,
            step_name=self.node_id,
            step_type=self.step.step_type.value,
            attempt=self.tried,
            error_type=second.result.error_type,
            error_bases=getattr(first.error, "error_bases", ()),
        )
        error.message = text[:MAX_LINE]
        error.__cause__ = second.error.__cause__ or second.error
        for note in getattr(first.error, "__notes__", ()):
            error.add_note(note)
        error.add_note(f"the step itself failed: {describe(first.error.__cause__ or first.error)}")
        result = self._failure(text, str(second.result.error_type))
        fields = {"op": "on_error", "attempt": self.tried, **failure_fields(error)}
        return StepFailed(error, result, PendingRecord(FAILURE, self.node_id, self.budget.visit, fields))

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
        undoes = mods.rollback is not None and outcome in ("succeeded", "recovered")
        if not run.is_recorded:
            sequence, now = run.journal.next_number(), format_time(run.options.clock.time())
        else:
            draft = self._draft(result, data, is_undoable=undoes)
            failure = None
            if failed is not None and failed.draft is not None:
                failure = failed.of_part() if self.is_child else failed.draft
            sequence, now = yield from run.record(
                (draft,) if failure is None else (failure, draft),
                is_fatal=mods.checkpoint,
                statements=statements,
                tags=tags,
            )
        run.progress.visits[self.node_id] = self.budget.visit
        if undoes:
            register(run, step, self.node_id, sequence, output, self.frame)
        if self.node_id == self.frame.prefix + step.name:
            self.frame.has_replayed(result, sequence, now)
        if run.is_listening:
            yield self._ended(result, duration)
        run.leave(self.node_id)
        return result

    def _ended(self, result: StepResult, duration: float) -> Emit:
        from milepost.model.lifecycle import StepCompleted

        self.is_open = False
        return Emit(
            StepCompleted(
                run_id=self.run.run_id,
                timestamp=self.run.options.clock.time(),
                step_name=self.node_id,
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
        return PendingRecord(CHECKPOINT, self.node_id, self.budget.visit, fields, _encode(kept))


# -- parts -------------------------------------------------------------------------------------------------


def _cause_text(cause: BaseException) -> str:
    """Describe the cause of a step's failure.

    For a failure inside it, this is the innermost failed step, whose id says where.
    """
    if not isinstance(cause, StepError):
        return describe(cause)
    # Only the text is the same live and on a replay. It names the innermost step already.
    line = first_line(cause)
    return line[max(0, line.find(f"step {cause.node_id!r}"[:-1] + "/")) :]
