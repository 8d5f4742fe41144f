"""Steps that are made of others: groups, branches, maps, and flows inside a flow.

Their parts are steps like any other, with ids below theirs, done and recorded for themselves. This module decides which
of them are done, how many at once, and how their failures count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from milepost.errors import (
    AsyncNodeError,
    AttemptTimedOut,
    DuplicateStepNameError,
    MaxIterationsError,
    NoBranchMatchedError,
    NodeError,
    PredicateTypeError,
    SerializeStateError,
    StateTypeError,
    StepError,
    WorkflowError,
    shown,
)
from milepost.executor import waits as parking
from milepost.executor.attempt import OutOfTime, PartsFailed, UnitVisit
from milepost.executor.checks import check_waits
from milepost.executor.context import Context
from milepost.executor.effects import Call, Emit, Routine
from milepost.executor.history_values import AttemptBudget, PendingRecord
from milepost.executor.run import bounded_gather
from milepost.executor.waits import Waits
from milepost.graph.nesting import SYNC_LANES, decode_inside
from milepost.graph.walker import Walker
from milepost.model.failure import contained, describe, place
from milepost.model.record import ITEMS, ROUTE
from milepost.model.reports import RunResult
from milepost.model.results import (
    BranchResult,
    ParallelResult,
    SubWorkflowInvocationResult,
    WorkflowResult,
)
from milepost.store import MAX_ID_BYTES
from milepost.workflows.matching import Arguments, described, differs, how_to_agree, non_determinism
from milepost.workflows.rollback import roll_back
from milepost.workflows.steps import Calls, Chooses, Invokes, Maps, Modifiers, Spreads, Step, is_async
from milepost.workflows.visiting import (
    StepFailed,
    answer_of,
    encoded_output,
    refuse_async,
    refuse_async_nodes,
    started,
)

if TYPE_CHECKING:
    from milepost.workflows.run import Frame, StepRun

_encode = msgspec.json.Encoder().encode


class PartsVisit(UnitVisit):
    """The visit of a step as far as it is made of others: what it has begun, and until when it may go on."""

    __slots__ = ("arguments", "ended_by", "ends_at", "floor", "followed", "frame", "is_open", "mods", "parts", "step")
    run: StepRun

    def __init__(self, run: StepRun, step: Step[Any], step_id: str, frame: Frame) -> None:
        super().__init__(run, step_id, AttemptBudget(), frame.context._followed_at)
        self.step = step
        self.frame = frame
        self.mods: Modifiers = step.modifiers
        self.arguments: Arguments = {}
        self.parts: Iterable[str] = ()
        """The ids of the parts that the step has begun so far."""
        self.floor = run.recorded.retried
        """The number of the record up to which failures of parts belong to an earlier attempt."""
        self.followed = frame.followed
        """The number of the record that let the step begin."""
        self.ends_at = frame.ends_at
        self.ended_by: str | None = None
        """The step inside whose failure, given to the code of a workflow inside, left that code later."""
        self.is_open = False
        """True after the event of its beginning and before the event of its end."""

    def _decide(self, predicate: Callable[..., Any], role: str) -> Routine[Any]:
        """Call a predicate of the step."""
        refuse_async(self.run, predicate, self.node_id)
        view = self.frame.context.view_for(role, self.node_id)
        return (yield Call(predicate, (view,), view, is_async(predicate), is_quick=not is_async(predicate)))

    # -- work that is made of other steps ----------------------------------------------------------------

    def _composed(self, context: Context[Any]) -> Routine[Any]:
        """Do the work of a step that is no call. Raises `PartsFailed` if the work does not succeed."""
        run, work = self.run, self.step.work
        if run.is_live and run.is_listening:
            self.is_open = True
            yield Emit(started(run, self.step, context))
        mine: float | None = None
        if self.mods.timeout is not None and not isinstance(work, Maps):
            mine = run.options.clock.monotonic() + self.mods.timeout
        outer, self.ends_at = self.ends_at, _earlier(self.ends_at, mine)
        try:
            if isinstance(work, Waits):
                if outer is not None:
                    self._refuse_wait()
                return (yield from parking.wait(run, work.within(self.mods.timeout), self.node_id, self.budget.visit))
            if isinstance(work, Spreads):
                return (yield from self._spread(work))
            if isinstance(work, Chooses):
                return (yield from self._choose(work))
            if isinstance(work, Maps):
                return (yield from self._map(work))
            assert isinstance(work, Invokes)
            return (yield from self._invoke(work))
        except OutOfTime as exc:
            if mine is None or exc.ends_at != mine:
                raise
            if isinstance(work, Invokes):
                yield from self._inner_failed(exc)
            assert self.mods.timeout is not None
            raise PartsFailed from AttemptTimedOut(self.mods.timeout, is_running=exc.is_running)
        finally:
            self.ends_at = outer

    def _refuse_wait(self) -> NoReturn:
        """Refuse to wait inside a step with a timeout: nothing would end that step while the run is parked."""
        run = self.run
        error = WorkflowError(
            f"step {self.node_id!r} of run {run.run_id!r} waits inside a step with .timeout(), which ends nothing while the "
            f"run is parked: leave it out, and limit a wait for a signal by its own wait_for(..., timeout=)",
            run_id=run.run_id,
        )
        run.hold_on(self.frame, error)
        raise error

    def _child_frame(self, followed: int = 0) -> Frame:
        """Return the frame of the children: with the time that is left for the step, and the record that they follow."""
        return self.frame.inside(self.ends_at, max(self.followed, followed))

    def _floor(self) -> int:
        """Return the sequence up to which failures of children belong to an earlier attempt."""
        failures = self.run.recorded.failures.get(self.node_id, ())
        return max([self.floor, *(entry.sequence for entry in failures if "retry_at" in entry.fields)])

    def _spread(self, work: Spreads) -> Routine[Any]:
        """Do the children at once."""
        run, frame, floor = self.run, self._child_frame(), self._floor()
        routines = {
            child.name: run.do(child, f"{self.node_id}/{child.name}", frame, is_child=True, floor=floor)
            for child in work.children
        }
        self.parts = [f"{self.node_id}/{name}" for name in routines]
        prefix = f"{self.node_id}/"
        outcomes = yield from _at_once(run, routines, work.max_parallel, routines, not run.is_awaited, prefix)
        results = ParallelResult(tuple(outcomes[child.name] for child in work.children))
        failed = [result for result in results if not result.success]
        if self.mods.must_succeed and failed:
            named = "; ".join(f"{result.name!r}: {result.error}" for result in failed)
            text = f"{len(failed)} of its {len(results)} steps failed ({named})"
            raise PartsFailed from self._of_parts(text, [result.name for result in failed])
        return results, _encode([child.name for child in work.children])

    def _choose(self, work: Chooses) -> Routine[Any]:
        """Do the first option whose predicate is true."""
        run = self.run
        chosen = run.recorded.choices.get(self.node_id)
        index = None if chosen is None else chosen.fields.get("index")
        followed = 0 if chosen is None else chosen.sequence
        if index is None:
            yield from run.live()
            index = yield from self._first_true(work)
            fields = {"index": index}
            followed, _ = yield from run.record((PendingRecord(ROUTE, self.node_id, self.budget.visit, fields),))
        if not 0 <= index < len(work.options):
            raise non_determinism(
                run.run_id, self.frame.position - 1, f"option {index} of branch {self.node_id!r}", repr(self.step)
            )
        option = work.options[index][1]
        try:
            option_id = f"{self.node_id}/{option.name}"
            self.parts = (option_id,)
            result = yield from run.do(option, option_id, self._child_frame(followed), floor=self._floor())
        except StepFailed as exc:
            if exc.is_of_saving:
                raise
            yield from self._save_last(exc)
            raise PartsFailed from exc.error.__cause__ or exc.error
        document = {"selected_index": index, "selected_step_name": option.name}
        return BranchResult(index, option.name, answer_of(run, option, option_id, result, self.frame)), _encode(
            document
        )

    def _first_true(self, work: Chooses) -> Routine[int]:
        run = self.run
        for index, (predicate, _) in enumerate(work.options):
            try:
                verdict = yield from self._decide(predicate, f"option {index}")
            except AsyncNodeError:
                raise
            except Exception as exc:
                raise PartsFailed from exc
            if type(verdict) is not bool:
                raise PartsFailed from PredicateTypeError(
                    f"predicate {index} of branch {self.node_id!r} of run {run.run_id!r} answered {shown(verdict)}: it must "
                    f"answer True or False",
                    node_id=self.node_id,
                    returned=verdict,
                )
            if verdict:
                return index
        raise PartsFailed from NoBranchMatchedError(
            f"no predicate of branch {self.node_id!r} of run {run.run_id!r} was true: add one that always is",
            node_id=self.node_id,
        )

    def _map(self, work: Maps) -> Routine[Any]:
        """Do every item; each is recorded for itself."""
        run, step_id = self.run, self.node_id
        try:
            ids = item_ids(run, self.step, step_id)
        except StepError as exc:
            raise PartsFailed from exc.__cause__
        refuse_async(run, work.fn, step_id)
        begun = run.recorded.items.get(step_id)
        followed = 0 if begun is None else begun.sequence
        if begun is None and run.is_recorded:
            yield from run.live()
            data = _items_json(run, work)
            fields = {"count": len(ids), "args": self.arguments or None}
            followed, _ = yield from run.record((PendingRecord(ITEMS, step_id, self.budget.visit, fields, data),))
        elif begun is not None and (work.key is None or self.mods.compare_args is not False):
            check_items(run, self.step, step_id, self.frame, begun.fields, self.arguments)
        frame, floor = self._child_frame(followed), self._floor()
        done: set[str] = set()
        if run.options.stop_before:
            run.later.update({*ids} - (run.recorded.begun_with(ids, floor) if begun is not None else set()))
        own = Modifiers(retry=self.mods.retry, timeout=self.mods.timeout, compare_args=self.mods.compare_args)
        routines = {}
        for item_id, item in zip(ids, work.items, strict=True):
            name = item_id.rpartition("/")[2]
            child: Step[Any] = Step(name, Calls(work.fn, (item,), {}, work.executor), own)
            routine = run.do(child, item_id, frame, is_child=True, floor=floor)
            routines[item_id] = self._counted(routine, item_id, done, len(ids))
        self.parts = ids
        recorded = [item_id for item_id in ids if item_id in run.recorded.done]
        needs_threads = (work.executor or run.options.executor) is None and not (run.is_awaited and is_async(work.fn))
        outcomes = yield from _at_once(run, routines, work.max_parallel, recorded, needs_threads)
        results = [outcomes[item_id] for item_id in ids]
        failed = [result for result in results if not result.success]
        if failed:
            named = "; ".join(f"{result.name!r}: {result.error}" for result in failed[:5])
            more = f" and {len(failed) - 5} more" if len(failed) > 5 else ""
            text = f"{len(failed)} of its {len(results)} items failed ({named}{more})"
            raise PartsFailed from self._of_parts(text, [result.name for result in failed])
        return [result.output for result in results], _encode({"count": len(ids)})

    def _counted(self, routine: Routine[Any], item_id: str, done: set[str], total: int) -> Routine[Any]:
        """Do an item, and announce the map's progress if the item succeeds. `done` holds the items that have."""
        result = yield from routine
        if result.success:
            done.add(item_id)
            if self.run.is_live:
                yield from self.run.announce_progress(self.node_id, len(done), total)
        return result

    def _of_parts(self, text: str, names: Iterable[str]) -> StepError:
        """Make the error of parts that failed. It matches what any of theirs does."""
        bases: dict[str, None] = {}
        for name in names:
            part_id = f"{self.node_id}/{name}"
            found = self.run.error_bases.get(part_id)
            if found is None:
                failures = self.run.recorded.failures.get(part_id)
                found = failures[-1].fields.get("error_bases", ()) if failures else ()
            bases.update(dict.fromkeys(found))
        return StepError(text, error_bases=tuple(bases)[:32])

    def _invoke(self, work: Invokes) -> Routine[Any]:
        """Run another flow inside this journal. Its arguments are recorded with the first thing that it records."""
        run, step_id = self.run, self.node_id
        beginnings, begun = run.journal.beginnings, run.recorded.items.get(step_id)
        is_new = begun is None or begun.fields.get("args") != self.arguments
        if self.arguments and is_new and not (begun and run.recorded.answers_inside(step_id)):
            beginnings[step_id] = PendingRecord(ITEMS, step_id, self.budget.visit, {"args": self.arguments})
        try:
            return (yield from self._walk(work) if work.flow.front == "graph" else self._play(work))
        finally:
            beginnings.pop(step_id, None)

    def _play(self, work: Invokes) -> Routine[Any]:
        """Play a workflow below this step's id."""
        run, step_id, flow = self.run, self.node_id, work.flow
        inner = run.frame(flow, step_id, work.given, self.ends_at, self.followed)
        self.parts = inner.asked
        try:
            output = yield from run.play(inner)
            data = encoded_output(run, flow, output) if run.is_recorded else b"null"
        except Exception as exc:
            if not run.is_failure(exc) or isinstance(getattr(exc, "error", exc), SerializeStateError):
                raise
            yield from run.live()
            self.ended_by = inner.ended_by
            yield from self._inner_failed(exc)
            raise PartsFailed from getattr(exc, "error", exc)
        encoded = data if isinstance(data, SerializeStateError) else b'{"final_output":' + data + b"}"
        return invoked(run, inner, output, 0.0), encoded

    def _save_last(self, exc: BaseException) -> Routine[None]:
        """Record the last failure of a step, if `exc` is one that is not recorded yet."""
        if isinstance(exc, StepFailed) and exc.draft is not None:
            yield from self.run.record((exc.of_part(),))
            exc.draft = None

    def _inner_failed(self, exc: BaseException) -> Routine[None]:
        """Record why a workflow inside failed and, if no attempt is left, undo its steps."""
        if isinstance(exc, StepFailed) and exc.draft is not None:
            # The code of the workflow inside has been given this failure, and is given it again on a replay.
            yield from self.run.record((exc.replayable(),))
            exc.draft = None
        policy = self.mods.retry
        if policy is None or self.budget.failures + 1 >= policy.max_attempts:
            # All steps inside are undone, whichever attempt did them.
            inside = {undone for undone in self.run.undos if undone.startswith(f"{self.node_id}/")}
            yield from roll_back(self.run, only=inside)

    def _walk(self, work: Invokes) -> Routine[Any]:
        """Walk a graph below this step's id, from where its records end."""
        run, step_id, graph, state = self.run, self.node_id, work.flow, work.given
        refuse_async_nodes(run, graph, step_id)
        if self.ends_at is not None and (graph.has_waits or graph.has_timers):
            self._refuse_wait()
        recorded = run.recorded
        self.parts = [f"{step_id}/{node_id}" for node_id in graph.units]
        if not run.is_live:
            check_waits(run, graph, recorded, prefix=f"{step_id}/")
            decode_inside(run, graph, recorded, run.progress.decoded, f"{step_id}/")
        walker = Walker(run, graph, f"{step_id}/")
        walker.not_before, walker.ends_at = self.followed, self.ends_at
        walker.is_resuming = bool(recorded.children(step_id))
        # The numbers of visits go on after those of superseded visits.
        walker.tally.visits = run.progress.visits
        walker.tally.knows_visits = not walker.is_resuming and not self.budget.attempts
        data = None
        if run.is_recorded and not walker.has_begun():
            data = run.journal.encode_if_possible(state, graph.codec)
        if data is not None:
            state = graph.codec.decode(data)  # the workflow's own object stays as it is, as on a replay
        try:
            state = yield from walker.go(state, data, graph.entry)
        except (NodeError, MaxIterationsError, StateTypeError) as exc:
            raise PartsFailed from exc
        encoded = run.journal.encode(state, graph.codec, "state") if run.is_recorded else b"null"
        if not isinstance(encoded, SerializeStateError):
            encoded = b'{"final_output":' + encoded + b',"iterations":' + str(walker.iteration).encode() + b"}"
        return graph_invoked(run, state, walker.iteration), encoded


def _at_once(
    run: StepRun,
    routines: dict[str, Routine[Any]],
    max_parallel: int | None,
    recorded: Iterable[str],
    needs_threads: bool,
    prefix: str = "",
) -> Routine[dict[str, Any]]:
    """Do several routines at once, at most `max_parallel` of them, and return the result of each.

    An error that is no failure of a step is raised after all have ended. Routines that may be `recorded` are answered
    before anything new begins. `prefix` and a name make an id.
    """
    limits = [limit for limit in (max_parallel, run.options.max_parallel) if limit is not None]
    known = {} if run.is_live else {name: routines[name] for name in recorded}
    answers, begun = yield from run.answered(known)
    still = {name: begun.get(name, routine) for name, routine in routines.items() if name not in answers}
    if still:
        yield from run.live()
        limit = min(limits, default=SYNC_LANES if needs_threads else None)
        run.progress.queue(run.recorded.idle_parts([prefix + name for name in routines], limit, -1))
        answers = answers | (yield from bounded_gather(run, still, limit))
    outcomes = {name: answers[name] for name in routines if name in answers}
    waits: list[Any] = []
    errors: list[BaseException] = []
    for outcome in outcomes.values():
        if isinstance(outcome.error, parking.Parked):
            waits += outcome.error.waits
        elif outcome.error is not None:
            errors.append(outcome.error)
    if errors:
        # An interruption goes before an error, because this step must not handle it.
        raise next((exc for exc in errors if not isinstance(exc, Exception)), errors[0])
    if waits:
        raise parking.Parked(tuple(waits))
    return {name: outcome.value for name, outcome in outcomes.items()}


def check_items(
    run: StepRun, step: Step[Any], step_id: str, frame: Frame, begun: Mapping[str, Any], now: Arguments
) -> None:
    """Refuse to go on with a map over other items than it began with, if only their order tells which item is which."""
    work, count, before = step.work, begun.get("count"), begun.get("args")
    assert isinstance(work, Maps)
    if count == len(work.items) and not differs(before, now):
        return
    hint = "map over the same items, or give the map a key= that tells them apart"
    kind = step.step_type.value
    raise non_determinism(
        run.run_id, frame.position - 1, described(step_id, kind, before, count=count),
        described(step_id, kind, now, count=len(work.items)),
        hint if step.modifiers.compare_args is False else how_to_agree(before, now),
    )  # fmt: skip


def item_ids(run: StepRun, step: Step[Any], step_id: str) -> list[str]:
    """Return the ids of a map's items: by index, or by the result of its `key` for each item."""
    work = step.work
    assert isinstance(work, Maps)
    if work.key is None:
        return [f"{step_id}/{index}" for index in range(len(work.items))]
    names = []
    for item in work.items:
        try:
            name = contained(work.key, item)
            if type(name) is not str:
                raise TypeError(f"its key= gave {shown(name)} for {shown(item)}: it must give a str")
            if len(name.encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
                raise ValueError(f"its key= gave {shown(name)}, of more than {MAX_ID_BYTES} bytes: give a digest of it")
        except Exception as exc:
            raise StepError(
                f"the key= of map {step_id!r} of run {run.run_id!r} failed for {shown(item)}: {describe(exc)}",
                run_id=run.run_id,
                node_id=step_id,
                step_name=step_id,
            ) from exc
        names.append(name)
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DuplicateStepNameError(
                f"map {step_id!r} of run {run.run_id!r} has two items with the key {name!r}: let key= tell them apart",
                run_id=run.run_id,
                node_id=step_id,
                step_name=name,
            )
        seen.add(name)
    return [f"{step_id}/{_item_name(name)}" for name in names]


def _item_name(key: str) -> str:
    """Turn a key into a part of an id: characters that ids must not have, or that divide ids, are percent-encoded."""
    text = "".join(
        f"%{byte:02X}" if byte in b"/%" or byte < 32 or byte == 127 else chr(byte) if byte < 128 else f"%{byte:02X}"
        for byte in key.encode("utf-8", "surrogatepass")
    )
    if not key.strip():
        text = "".join(f"%{byte:02X}" for byte in key.encode()) or "%"
    return {".": "%2E", "..": "%2E%2E"}.get(text, text)


def _items_json(run: StepRun, work: Maps) -> bytes | None:
    codec = run.flow.items_codec_of(work.fn)
    data = run.journal.encode(list(work.items), codec, "items")
    if isinstance(data, SerializeStateError):
        place(data, f"the items of a map of run {run.run_id!r} cannot be recorded", "give items that the codec carries")
        data.run_id = run.run_id
        raise data
    return data


def graph_invoked(run: StepRun, state: Any, iterations: int) -> SubWorkflowInvocationResult[Any]:
    result = RunResult(state=state, run_id=run.run_id, status="finished", iterations=iterations)
    return SubWorkflowInvocationResult(state, result)


def invoked(run: StepRun, inner: Frame, output: Any, duration: float) -> SubWorkflowInvocationResult[Any]:
    result = WorkflowResult(
        workflow_name=inner.flow.name,
        success=True,
        step_results=tuple(inner.results.values()),
        total_duration_ms=duration,
        output=output,
        run_id=run.run_id,
    )
    return SubWorkflowInvocationResult(result.final_output, result)


def lasting(output: Any, duration: float) -> Any:
    """Return the result of a workflow inside with the duration of its step's record, as a replay gives it."""
    result = getattr(output, "workflow_result", None)
    if not isinstance(result, WorkflowResult):
        return output
    return replace(output, workflow_result=replace(result, total_duration_ms=duration))


def _earlier(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
