"""A run of a workflow of steps: its code is played, and every step that it asks for is answered or done.

The code is played from its beginning each time. Recorded steps are answered from the record and yield no effect, so the
first new thing shows where the run goes on. There the replay yields `Ready`, the run is claimed, and the same generator
goes on. A refusal comes before that, and leaves the run as it was.

    this module         the code of one workflow: ask it for a step, do the step, give the code the result
    workflows/step      one step: when, retry, on_error, skip_on_error, as_result; its record and its checkpoint
    executor/waits      waits and timers: a run that waits is released, and this process keeps nothing of it
    workflows/rollback  rollbacks, when the run is to end as failed or cancelled
    workflows/replay    the place where a run goes on: the code is played over the journal
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, NoReturn

from milepost.errors import (
    AsyncNodeError,
    CheckpointWriteError,
    DeserializeStateError,
    DuplicateStepNameError,
    FlowChangedError,
    MilepostError,
    MilepostInterrupt,
    RunCancelled,
    RunStopped,
    SerializeStateError,
    StatementError,
    StateTypeError,
    StepError,
    StoreError,
    WorkflowError,
    WorkflowHeldError,
    shown,
)
from milepost.executor import waits as parking
from milepost.executor.attempt import announce_checkpoint, go_on_without, keep_unrecorded
from milepost.executor.checks import Amendment, ResumeRequest
from milepost.executor.effects import Alone, Gather, HoldOver, Outcome, Ready, Routine, ask
from milepost.executor.flow import StepFlow
from milepost.executor.history import JournalHistory
from milepost.executor.history_reader import newest_renames, read_history
from milepost.executor.history_values import PendingRecord
from milepost.executor.run import Run, complete
from milepost.model.failure import (
    cancels_of_task,
    causes_of,
    contained,
    describe,
    error_of,
    failure_fields,
    first_line,
    is_cancellation,
    place,
    raised_here,
    recorded_step_error,
    with_way_to_catch,
)
from milepost.model.record import CHECKPOINT, FAILURE, FINISH, Record, format_time, source_of
from milepost.model.results import RollbackError, StepResult, WorkflowResult
from milepost.options import Options
from milepost.store import Release, RunRow, RunSnapshot, Statement, Store, cancel_text
from milepost.workflows import replay as replaying
from milepost.workflows import rollback as undoing
from milepost.workflows import step as performing
from milepost.workflows.answers import matching
from milepost.workflows.context import WorkflowContext
from milepost.workflows.matching import described, non_determinism
from milepost.workflows.replay import ExaminedWorkflow, as_recorded, inputs_of, primed, primed_or_over
from milepost.workflows.steps import Named, Step
from milepost.workflows.visiting import StepFailed, answer_of, encoded_output

if TYPE_CHECKING:
    from milepost.executor.context import Context
    from milepost.model.events import Event
    from milepost.model.info import Wait

READY = Ready()
_MOST_REFUSED = 1000
"""The number of steps after which code that is closed, and asks for one step after the other, is left alone."""


class Frame:
    """A workflow whose code is being played: the run's own, with id "", or the workflow of a step."""

    def __init__(
        self,
        run: StepRun,
        flow: Any,
        step_id: str,
        inputs: Mapping[str, Any],
        ends_at: float | None,
        followed: int = 0,
    ) -> None:
        self.id = step_id
        self.prefix = f"{step_id}/" if step_id else ""
        self.flow = flow
        self.inputs = inputs
        self.ends_at = ends_at
        self.results: dict[str, StepResult] = {}
        self.roots = () if run.is_live else run.recorded.children(step_id)
        """The ids of the steps that the code asked for before, in order."""
        self.asked: list[str] = []
        """The ids of the steps that the code has asked for now."""
        self.thrown: list[StepFailed] = []
        """The failures that the code was given."""
        self.ended_by: str | None = None
        """The step whose failure, given to the code before, made it fail."""
        self.position = 0
        self.followed = followed
        """The sequence of the record that the next step follows: a crash before it uses up no attempt of the step."""
        begun = run.recorded.start
        self.context: WorkflowContext[Any] = WorkflowContext(
            run.scope,
            step_id,
            str(begun.fields.get("timestamp") or run.followed_at) if begun is not None else run.followed_at,
            inputs=inputs,
            results=self.results,
            config=run.config,
            version=run.version,
            is_replaying=bool(self.roots),
        )
        self.context._tags = run.journal.tags
        if begun is not None:
            self._draw(run, begun.fields)

    def _draw(self, run: StepRun, begun: Mapping[str, Any]) -> None:
        """Tell the steps that a fork copied where they come from, so that their code draws the values of the original run."""
        run.draw_from(begun)
        if run.origins:
            first = run.recorded.first_below(self.id) if self.id else 0
            self.context._source = None if first is None else source_of(run.origins, first)

    def inside(self, ends_at: float | None, followed: int) -> Frame:
        """Return a copy of this frame for the parts of one of its steps: with an earlier end, and what they follow."""
        other = copy.copy(self)
        other.ends_at, other.followed = ends_at, followed
        return other

    def has_replayed(self, result: StepResult, sequence: int, timestamp: str) -> None:
        """Note a step that has ended, and the record that says so."""
        self.results[result.name] = result
        self.followed = sequence
        self.context._followed_at = timestamp
        self.context._is_replaying = self.position < len(self.roots)


class StepRun(Run):
    """A run of a workflow."""

    __slots__ = (
        "cancel",
        "config",
        "error_bases",
        "failed_step",
        "held",
        "is_live",
        "later",
        "main",
        "pending",
        "rollback_errors",
        "rolled_back",
        "root",
        "stood",
        "taken_at",
        "undos",
        "version",
    )
    flow: StepFlow
    front = "workflow"
    unit = "step"
    input_name = input_example = "inputs"
    is_replayed = True

    def __init__(
        self, flow: StepFlow, store: Store | None, run_id: str, options: Options, *, is_listening: bool
    ) -> None:
        super().__init__(flow, store, run_id, options, is_listening=is_listening)
        self.config: Any = options.config
        self.version: int = flow.version
        self.forget()

    def forget(self) -> None:
        """Forget all that is known of the record, as before a replay."""
        self.know(JournalHistory())
        self.is_live = True
        self.held: WorkflowHeldError | None = None
        """The bug in the code that holds the run."""
        self.main: Routine[Any] | None = None
        self.root: Frame | None = None
        self.pending: list[tuple[str, Step[Any]]] = []
        """The steps at which replays have come to their ends."""
        self.stood: set[str] = set()
        """The steps at which the run stood when it was claimed in order to go on."""
        self.later: set[str] = set()
        """Items of maps at which the run did not stand, though it stood at other items of the same map."""
        self.taken_at = -1
        """The sequence of the record of the claim."""
        self.undos: dict[str, undoing.Undo] = {}
        self.error_bases: dict[str, tuple[str, ...]] = {}
        """The classes of errors with which parts of steps have failed in this process."""
        self.unsaved: tuple[PendingRecord, ...] = ()
        self.rollback_errors: tuple[RollbackError, ...] = ()
        self.rolled_back: set[str] = set()
        """The steps that this process has undone."""
        self.cancel: str | None = None
        """The reason of a cancel that the write of a step's result reported.

        The step completes before the cancel takes effect.
        """
        self.failed_step: StepResult | None = None

    # -- beginning and going on ------------------------------------------------------------------------

    def fork(
        self,
        new_run_id: str,
        into: Store | None,
        node_id: str | None,
        visit: int | None,
        *,
        ready: bool,
        by: str | None,
    ) -> Routine[str]:
        """Copy the run up to a visit into a new one."""
        from milepost.graph.fork_run import fork  # most programs never need it

        return fork(
            self.store, self.run_id, new_run_id, into=into or self.store, node_id=node_id, visit=visit, run=self,
            ready=ready, by=by,
        )  # fmt: skip

    def begin(self, given: Any, data: bytes | None) -> Routine[Any]:
        """Play the workflow's code on its inputs."""
        return self._played(self.whole(given))

    def find(self, request: ResumeRequest, latest: RunSnapshot) -> Routine[ExaminedWorkflow]:
        """Play the recorded part, up to the first thing that is new."""
        return replaying.find(self, request, latest)

    def refusal(self, request: ResumeRequest, examined: ExaminedWorkflow) -> MilepostError | None:
        """Return the reason why the verb does not go on from the end of the replay, or None."""
        return replaying.refusal(self, request, examined)

    def go_on(self, request: ResumeRequest, examined: ExaminedWorkflow, amendment: Amendment | None) -> Routine[Any]:
        """Go on with the code that was replayed, or with the rollbacks of a failure that is already recorded."""
        assert self.main is not None
        self._taken(examined)
        final = self.recorded.final
        if final is not None and self.recorded.finish is None:
            self.main.close()
            self.journal.begin_to_end()
            yield from undoing.roll_back(self)
            raise recorded_step_error(self.run_id, final.fields, final.record.node_id)
        return (yield from self._played(self.main))

    def end(self, found: ExaminedWorkflow, row: RunRow) -> Routine[Any]:
        """Carry out a cancel that is open. Steps with a rollback are undone first."""
        if self.main is None:
            # Its input was never read, so it has done nothing.
            yield from super().end(found, row)
        assert self.main is not None
        self._taken(found)
        self.main.close()
        self.journal.begin_to_end()
        yield from undoing.roll_back(self)
        raise self.journal.cancelled(cancel_text(row.cancel or "", row.cancel_by))

    def _taken(self, found: ExaminedWorkflow) -> None:
        """Note that this call owns the run from now on."""
        self.is_live = True
        if found.row.lease == "ended":
            self.recorded = self.recorded.crashed_at(self.journal.sequence)
        self.journal.missed = ()
        self.stood = {step_id for step_id, _ in self.pending}
        self.taken_at = self.journal.sequence

    def recorded_end(self, failure: Record, end: Record) -> Routine[MilepostError]:
        """Make the error of the step that failed, or of the workflow's own code."""
        yield from ()
        error = recorded_step_error(self.run_id, failure.fields(), failure.node_id)
        with_way_to_catch(error)
        return error

    def _end_badly(self, exc: BaseException) -> Routine[BaseException]:
        """Give the run up. The caller alone gets the facts of the error that no record holds."""
        error = yield from super()._end_badly(exc)
        with_way_to_catch(error)
        return error

    def in_flight(self, latest: RunSnapshot) -> Routine[tuple[str, int]]:
        """Return no node and visit 1: a replay counts visits over all records."""
        yield from ()
        return "", 1

    # -- playing the code ------------------------------------------------------------------------------

    def _played(self, main: Routine[Any]) -> Routine[Any]:
        """Play to the end. A run that has to wait is parked, or plays again if the answer has arrived meanwhile."""
        while True:
            try:
                return (yield from main)
            except parking.Parked as parked:
                if (yield from parking.park(self, parked.waits)):
                    raise parking.suspended(self) from None
            records: list[Record] = yield from ask(self.store, "read", self.run_id)
            row: RunRow = yield from ask(self.store, "get_run", self.run_id)
            unsaved = self.unsaved
            self.forget()
            self.unsaved = unsaved
            records = as_recorded(self, records, row.live, self.given)
            self.know_renames(newest_renames(records))
            self.know(read_history(records, row.live, self.renames))
            assert self.recorded.start is not None
            self.is_live = False
            self.main = main = self.whole(inputs_of(self, self.recorded.start))
            yield from primed(main)
            self.is_live = True

    def whole(self, inputs: Mapping[str, Any]) -> Routine[Any]:
        """Play the run's own code, and record how it ended."""
        frame = self.root = Frame(self, self.flow, "", inputs, None)
        cancels = cancels_of_task()
        try:
            output = yield from self.play(frame)
            yield from self.live()
            yield from self._finish(output)
        except (parking.Parked, GeneratorExit):
            raise
        except BaseException as exc:
            if is_cancellation(exc) and cancels_of_task() <= cancels:
                exc = self._cancelled_inside(frame)
            cancelled = self._cancelled_by(exc)
            if cancelled is None and self._is_refusal(exc):
                raise
            yield from self.live()
            raise (yield from self._fail(cancelled or exc)) from getattr(exc, "__cause__", None)
        return output

    def _cancelled_inside(self, frame: Frame) -> WorkflowError:
        """Return the error for a cancel that the workflow's code itself has caused, and taken back as it was closed."""
        bug = WorkflowError(
            f"asyncio.timeout(), or something like it, cancelled a step of run {self.run_id!r}: say .timeout(seconds) at the "
            f"step instead",
            run_id=self.run_id,
        )
        try:
            self.hold_on(frame, bug)
        except WorkflowHeldError as held:
            return held
        return bug

    def _cancelled_by(self, exc: BaseException) -> RunCancelled | None:
        """Return the cancel that ended a call in flight, or None. The steps before that call are still undone."""
        held = self.journal.held
        if held is None or held.cancel is None or not isinstance(exc, (HoldOver, MilepostInterrupt)):
            return None
        ended = self.journal.over() if isinstance(exc, HoldOver) else exc.error
        return ended if isinstance(ended, RunCancelled) else None

    def _is_refusal(self, exc: BaseException) -> bool:
        """Return whether a replay cannot go on, so that nothing may be written, not even that the run failed."""
        if not isinstance(exc, Exception):
            return True
        return not self.is_live and isinstance(
            exc, (FlowChangedError, DeserializeStateError, StoreError, AsyncNodeError)
        )

    def frame(self, flow: Any, step_id: str, inputs: Mapping[str, Any], ends_at: float | None, followed: int) -> Frame:
        """Return a frame for a workflow that is a step of this run."""
        return Frame(self, flow, step_id, inputs, ends_at, followed)

    def is_failure(self, exc: BaseException) -> bool:
        """Return whether the workflow itself failed, and not its store, its owner or its time, and is not held."""
        return isinstance(exc, StepFailed) or _ends_run(exc)

    def do(
        self, step: Step[Any], step_id: str, frame: Frame, *, is_child: bool = False, floor: int = -1
    ) -> Routine[StepResult]:
        """Do a step, or answer it from the record; see `milepost.workflows.step`."""
        return performing.do(self, step, step_id, frame, is_child=is_child, floor=floor)

    def play(self, frame: Frame) -> Routine[Any]:
        """Ask the code for steps and do them until it returns; return its output."""
        body = frame.flow.begin(frame.context, frame.inputs)
        answer: Any = None
        failed: StepFailed | None = None
        try:
            while True:
                asked, end = None, None
                try:
                    asked = body.send(answer) if failed is None else body.throw(failed.error)
                except BaseException as exc:
                    end = exc
                if failed is not None:
                    if end is failed.error:
                        self._check_used_up(frame, f"its end with {describe(end)}")
                        frame.results.pop(failed.result.name)
                        raise failed
                    yield from self._caught(frame, failed)
                if isinstance(end, StopIteration):
                    self._check_used_up(frame, "its end")
                    return end.value
                if end is not None:
                    self._fail_code(frame, end)
                try:
                    step = self._asked(frame, asked)
                except (WorkflowError, DuplicateStepNameError) as exc:
                    self.hold_on(frame, exc)
                    raise
                step_id = frame.prefix + step.name
                failed = None
                try:
                    result = None if self.is_live else matching(self, step, step_id, frame)
                    if result is None:
                        result = yield from performing.do(self, step, step_id, frame)
                except StepFailed as exc:
                    if not isinstance(exc.error, StepError):
                        raise
                    failed = exc
                    self._throw(frame, failed)
                else:
                    answer = answer_of(self, step, step_id, result, frame)
        except BaseException as exc:
            _close(body, exc)
            raise

    def _throw(self, frame: Frame, failed: StepFailed) -> None:
        """Prepare to give a failure to the code, which sees the step's result and the time of the record."""
        failed.timestamp = failed.timestamp or format_time(self.options.clock.time())
        frame.thrown.append(failed)
        frame.has_replayed(failed.result, max(frame.followed, failed.sequence), failed.timestamp)

    def _caught(self, frame: Frame, failed: StepFailed) -> Routine[None]:
        """Record that the code was given a failure and went on. Nothing else may begin before that."""
        if failed.draft is not None:
            draft, failed.draft = failed.replayable(is_caught=True), None
            yield from self.live()
            frame.followed, _ = yield from self.record((draft,), at=failed.timestamp)

    def _fail_code(self, frame: Frame, end: BaseException) -> NoReturn:
        """Raise the error that the workflow fails with after its code has raised `end`."""
        if _is_bug(end, frame.flow.hold_on):
            self.hold_on(frame, end)
        if isinstance(end, Exception):
            self._check_used_up(frame, f"its end with {describe(end)}")
        elif error_of(end) is None:
            raise end
        chain = causes_of(end, with_contexts=True)
        by = next((failed for error in chain for failed in frame.thrown if failed.error is error), None)
        frame.ended_by = None if by is None else frame.prefix + by.result.name
        if by is not None and by.error is end:
            fields = failure_fields(end.__cause__ or end)
            draft = PendingRecord(FAILURE, "", 1, {"op": "execute", "attempt": 1, "of": frame.ended_by, **fields})
            raise StepFailed(by.error, by.result, None if frame.id else draft) from end.__cause__
        raise (
            self._placed(end) if isinstance(end, (WorkflowError, DuplicateStepNameError)) else self._broken(frame, end)
        ) from end

    def hold_on(self, frame: Frame, bug: BaseException) -> None:
        """Raise `WorkflowHeldError` for a bug in the code, unless the run has no row that could say so."""
        if not self.is_recorded or not self.store.can_park or not frame.flow.hold_on:
            return
        text = first_line(bug) if isinstance(bug, MilepostError) else describe(bug)
        error = WorkflowHeldError(
            f"the code of workflow {frame.flow.name!r} of run {self.run_id!r} has a bug, which holds the run: {text}; nothing "
            f"is undone: mend the code, then resume",
            run_id=self.run_id,
        )
        error.reason, self.held = text, error
        raise error from (bug.__cause__ or bug if isinstance(bug, WorkflowError) else bug)

    def held_by(self) -> MilepostError | None:
        """Return the error of the bug that the code has come to, or None."""
        return self.held

    def _asked(self, frame: Frame, asked: Any) -> Step[Any]:
        """Return the step that the code asks for, after the checks.

        Raises `WorkflowError` if it is no step, `DuplicateStepNameError` if its name is in use, and
        `NonDeterminismError` if another step is recorded at this position.
        """
        if not isinstance(asked, Step):
            if isinstance(asked, Named):
                what = f"{asked!r}, which has no kind: complete it, as in {asked!r}.python(f)"
            else:
                way = "await" if frame.flow.is_async else "yield"
                what = (
                    f"{shown(asked)}, which is no step: {way} step(name).python(f), and nothing else; parallel and map do "
                    f"things at once"
                )
            raise WorkflowError(
                f"workflow {frame.flow.name!r} of run {self.run_id!r} asked for {what}", run_id=self.run_id
            ) from TypeError(f"not a step: {shown(asked)}")
        step_id = frame.prefix + asked.name
        if asked.name in frame.results:
            raise DuplicateStepNameError(
                f"workflow {frame.flow.name!r} of run {self.run_id!r} has two steps called {asked.name!r}: give each a name of "
                f'its own, as in step(f"{asked.name}-{{i}}")',
                run_id=self.run_id,
                node_id=step_id,
                step_name=asked.name,
            )
        if frame.position < len(frame.roots):
            expected = frame.roots[frame.position]
            if expected != step_id:
                raise non_determinism(
                    self.run_id,
                    frame.position,
                    self._describe_step(expected),
                    described(step_id, asked.work.step_type.value),
                )
        frame.position += 1
        frame.asked.append(step_id)
        return asked

    def _describe_step(self, step_id: str) -> str:
        entry = self.recorded.done.get(step_id)
        if entry is None:
            return f"step {step_id!r}"
        return described(step_id, str(entry.fields.get("step_type")), entry.fields.get("args"))

    def _check_used_up(self, frame: Frame, end: str) -> None:
        if frame.position < len(frame.roots):
            raise non_determinism(self.run_id, frame.position, self._describe_step(frame.roots[frame.position]), end)

    def _placed(self, exc: MilepostError) -> MilepostError:
        complete(exc, run_id=self.run_id)
        return exc

    def _broken(self, frame: Frame, exc: BaseException) -> WorkflowError:
        error = WorkflowError(
            f"the code of workflow {frame.flow.name!r} of run {self.run_id!r} failed: {describe(exc)}",
            run_id=self.run_id,
        )
        error.reason = describe(exc)
        return error

    # -- what is live ----------------------------------------------------------------------------------

    def live(self) -> Routine[None]:
        """Wait until the run is claimed: whatever follows is new."""
        if not self.is_live:
            yield READY

    def enter(self, step_id: str) -> None:
        """Raise the error, if any, that keeps the run from beginning something new."""
        if self.journal.held is not None:
            self.journal.check_hold()
        if self.options.run_timeout is not None:
            self.time_left(None)
        if step_id in self.options.stop_before and not self.stood_at(step_id):
            raise self._stopped("before", step_id)

    def stood_at(self, node_id: str) -> bool:
        """Return whether the replay of a resumed run came to its end at this step, or inside it."""
        if self.info is None or node_id in self.later:
            return False
        if self.journal.sequence == self.taken_at:
            self.stood.add(node_id)  # no record since the claim: this step is what was next
        return node_id in self.stood

    def leave(self, step_id: str) -> None:
        """Raise the error, if any, that keeps the run from going on after a step."""
        if self.cancel is not None:
            raise self.journal.cancelled(self.cancel)
        if step_id in self.options.stop_after:
            raise self._stopped("after", step_id)

    def gather(
        self,
        routines: Mapping[str, Routine[Any]],
        max_parallel: int | None = None,
        is_stopped: Callable[[], bool] | None = None,
    ) -> Routine[dict[str, Outcome]]:
        """Do several things at once and return an outcome for each, in order. Answers from the record come first."""
        outcomes, still = yield from self.answered(routines)
        if still:
            yield from self.live()
            outcomes.update((yield Gather(still, max_parallel, is_stopped)))
        return {name: outcomes[name] for name in routines}

    def answered(
        self, routines: Mapping[str, Routine[Any]]
    ) -> Routine[tuple[dict[str, Outcome], Mapping[str, Routine[Any]]]]:
        """Answer from the record as many routines as possible.

        Returns the outcomes of those, and the other routines, each at the place where it begins anew.
        """
        if self.is_live:
            return {}, routines
        outcomes: dict[str, Outcome] = {}
        for name, routine in routines.items():
            try:
                is_over, value = yield from primed_or_over(routine)
            except Exception as exc:
                if self._is_refusal(exc):
                    raise
                outcomes[name] = Outcome(error=exc)
            else:
                if is_over:
                    outcomes[name] = Outcome(value)
        return outcomes, {name: routine for name, routine in routines.items() if name not in outcomes}

    # -- recording -------------------------------------------------------------------------------------

    def record(
        self,
        drafts: tuple[PendingRecord, ...],
        *,
        is_fatal: bool = False,
        release: Release | None = None,
        statements: tuple[Statement, ...] = (),
        tags: dict[str, str] | None = None,
        at: str = "",
    ) -> Routine[tuple[int, str]]:
        """Write records; return the number and the time of the last of them.

        Records that fail to be written join the next write.

        `at` is the time of the records, if it was taken before. `tags` go with this write, beside those that wait in the
        journal. With statements the records are written now or not at all: `StatementError` leaves everything as it was.
        """
        if statements:
            yield Alone()
        now = at or format_time(self.options.clock.time())
        if not self.is_recorded:
            return self.journal.next_number(), now
        before = self.unsaved
        waiting, self.unsaved = (*before, *drafts) if before else drafts, ()
        journal = self.journal
        records = tuple([journal.make_at(now, *draft) for draft in waiting])
        try:
            yield from journal.write(records, release, tags, statements)
        except StatementError:
            self.unsaved = before
            raise
        except RunCancelled as exc:
            if release is not None or not drafts or drafts[-1].kind != CHECKPOINT:
                raise
            # The record is written: the step has succeeded, and is among those that are undone.
            self.cancel = cancel_text(exc.reason, exc.by)
        except CheckpointWriteError as exc:
            is_fatal = is_fatal or bool(statements) or release is not None
            node_id = drafts[-1].step_id if drafts else ""
            if not (yield from go_on_without(self, "append", node_id, exc, is_fatal=is_fatal)):
                raise
            self.unsaved = (*waiting, *self.unsaved)
            journal.missed = tuple(
                f"{draft.step_id}#{draft.visit}" for draft in self.unsaved if draft.kind == CHECKPOINT
            )
            return records[-1].sequence, now
        if journal.missed:
            journal.missed = ()
        if self.is_listening:
            for written in records:
                if written.kind == CHECKPOINT:
                    yield announce_checkpoint(self, written)
        return (records[-1].sequence if records else journal.sequence), now

    def keep_tags(self, context: Context[Any]) -> None:
        """Keep the tags of a call that succeeded for the next write."""
        self.journal.tags.update(context._tags or {})

    def _finish(self, output: Any) -> Routine[None]:
        """Record the output of the workflow. An output that cannot be recorded fails it."""
        if not self.is_recorded:
            return
        data = encoded_output(self, self.flow, output)
        if isinstance(data, SerializeStateError):
            place(
                data,
                f"what workflow {self.flow.name!r} of run {self.run_id!r} returned cannot be recorded",
                "declare what it returns: -> Steps[...], or return what the codec carries",
            )
            raise data
        fields = {"status": "finished"}
        # What is not saved yet is saved with this record.
        release = Release("finished") if self.unsaved else self.journal.make_release("finished")
        yield from self.record((PendingRecord(FINISH, "", 1, fields, data),), release=release)

    def _fail(self, exc: BaseException) -> Routine[BaseException]:
        """Record that the run failed and undo the steps with a rollback; return the error that it failed with."""
        if isinstance(exc, RunCancelled):
            self.journal.begin_to_end()
            yield from undoing.roll_back(self)
            return exc
        failed = exc if isinstance(exc, StepFailed) else None
        error: BaseException = exc if failed is None else failed.error
        if failed is not None:
            self.failed_step = failed.result
        by = None if self.root is None else self.root.ended_by
        if not _ends_run(error) or not self.is_recorded:
            if _ends_run(error):
                yield from undoing.roll_back(self)
            return error
        assert isinstance(error, MilepostError)
        draft = failed.draft if failed is not None else None
        if draft is None:
            at = failed.result.name if failed is not None else ""
            fields = failure_fields(error.__cause__ or error)
            op = "workflow" if not at else "execute"
            draft = PendingRecord(FAILURE, at, 1, {"op": op, "attempt": 1, "of": by, **fields})
        draft = draft._replace(fields={**draft.fields, "final": True})
        try:
            if self.undos or not self.rolled_back.issuperset(self.recorded.rollbacks_due):
                yield from self.record((draft,), is_fatal=True)
                self.journal.begin_to_end()
                yield from undoing.roll_back(self)
            else:
                reason = first_line(error)
                fields = failure_fields(error.__cause__ or error)
                finish = PendingRecord(FINISH, "", 1, {"status": "failed", "reason": reason, **fields})
                release = self.journal.make_release("failed", reason)
                yield from self.record((draft, finish), is_fatal=True, release=release)
        except StoreError as lost:
            keep_unrecorded(self, error, lost, is_end=True)
        return error

    def still_waiting(self) -> Routine[tuple[Wait, ...]]:
        """Return the waits that are still open although the run ends otherwise."""
        return parking.unanswered(self)

    # -- what it gives ---------------------------------------------------------------------------------

    def result(self, value: Any) -> WorkflowResult[Any]:
        """Return the result of the workflow that has ended."""
        return self.result_of(value, None)

    def result_of(self, value: Any, error: BaseException | None) -> WorkflowResult[Any]:
        """Return the result so far, or with `error`."""
        results = () if self.root is None else tuple(self.root.results.values())
        if self.failed_step is not None and self.failed_step not in results:
            results = (*results, self.failed_step)
        return WorkflowResult(
            workflow_name=self.flow.name,
            success=self.status == "finished",
            step_results=results,
            total_duration_ms=(self.options.clock.monotonic() - self.started_at) * 1000,
            output=value,
            rollback_errors=self.rollback_errors,
            run_id=self.run_id,
            status=self.status,
            error=error,
            degraded=self.journal.degraded,
            missed=self.journal.missed,
            resumed=self.info,
            waiting_for=getattr(error, "waiting_for", ()),
        )

    def so_far(self, stopped: MilepostError) -> WorkflowResult[Any]:
        """Return the result of a run that waits or was stopped."""
        waits = tuple(getattr(stopped, "waiting_for", ()))
        return dataclasses.replace(self.result_of(None, None), waiting_for=waits)

    def _started(self, began_with: Any) -> Event:
        from milepost.model.lifecycle import WorkflowStarted

        if self.info is not None and self.info.already_completed:
            began_with = self.root.inputs if self.root is not None else {}  # its output is no input
        return WorkflowStarted(
            run_id=self.run_id,
            timestamp=self.options.clock.time(),
            workflow_name=self.flow.name,
            inputs=began_with if isinstance(began_with, Mapping) else {},
            resumed=self.info,
        )

    def _completed(self, result: Any, error: BaseException | None) -> Event:
        from milepost.model.lifecycle import RunBlocked, WorkflowCompleted

        if isinstance(error, WorkflowHeldError):
            now = self.options.clock.time()
            return RunBlocked(run_id=self.run_id, timestamp=now, reason=first_line(error), error=error.__cause__)
        outcome = result if isinstance(result, WorkflowResult) else self.result_of(None, error)
        return WorkflowCompleted(
            run_id=self.run_id,
            timestamp=self.options.clock.time(),
            workflow_name=self.flow.name,
            success=outcome.success,
            result=outcome,
            total_duration_ms=outcome.total_duration_ms,
            degraded=self.journal.degraded,
            missed=self.journal.missed,
            error=error,
        )

    def _stopped(self, where: str, step_id: str) -> Exception:
        return RunStopped(
            f"run {self.run_id!r} stopped {where} step {step_id!r}, as asked: resume to go on",
            run_id=self.run_id,
            node_id=step_id,
        )


def _ends_run(error: BaseException) -> bool:
    """Return whether the workflow itself failed, and not its store, its owner or its time."""
    kinds = (WorkflowError, StepError, DuplicateStepNameError, StateTypeError, SerializeStateError)
    return isinstance(error, kinds) and not isinstance(error, WorkflowHeldError)


def _is_bug(end: BaseException, kinds: tuple[type[Exception], ...]) -> bool:
    """Return whether `end`, which the code of a workflow raised between its steps, is a bug.

    It is one of a class in `kinds`, or what this library refuses to that code, or a group of such errors alone. An error
    that the code raises from the failure of a step is its own.
    """
    if isinstance(end, (WorkflowError, StepError)) or not isinstance(end, Exception):
        return False
    if isinstance(end, ExceptionGroup):
        return all(_is_bug(error, kinds) for error in end.exceptions)
    if any(isinstance(cause, StepError) for cause in causes_of(end)):
        return False
    return isinstance(end, kinds) or raised_here(end)


def _close(body: Any, why: BaseException) -> None:
    """Close a workflow's code, which ends because of `why`. The steps that it still asks for in a `finally` are not done.

    The generators that it delegates to are closed first: Python leaves one open that yields while it is closed.
    """
    for _ in range(_MOST_REFUSED):
        inner = getattr(body, "gi_yieldfrom", None) or getattr(body, "cr_await", None)
        if isinstance(inner, (GeneratorType, CoroutineType)):
            _close(inner, why)
        try:
            contained(body.close)
        except Exception as exc:
            if isinstance(exc, RuntimeError) and "ignored GeneratorExit" in str(exc):
                continue
            why.add_note(f"a finally of the workflow failed as it ended: {describe(exc)}")
        return
