"""Looks at a run from outside: its state, its outputs, its end. Nothing here claims a run or changes one.

A graph's record can be decoded by itself. The output of a workflow's step is JSON until its type is known, and only the
workflow's code knows that. So the code is played over the record, up to where it would do something new, and every step
that it asks for on the way is noted (`WorkflowView`).
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, cast

from milepost.engine.raw import RawRun
from milepost.errors import (
    CheckpointNotFoundError,
    MilepostError,
    NoCheckpointFoundError,
)
from milepost.executor.checks import ResumeRequest, check_flow, content_of
from milepost.executor.chronicle import Chronicle
from milepost.executor.effects import Routine, ask
from milepost.executor.flow import GraphFlow, WaitWork, codec_at, find_node
from milepost.executor.history import JournalHistory
from milepost.executor.history_reader import newest_renames, read_history
from milepost.executor.history_values import StepRecord, parent_of
from milepost.executor.journal import read_start
from milepost.executor.resume import await_change
from milepost.executor.run import Run
from milepost.executor.start import attach
from milepost.executor.waits import Waits, waits_of
from milepost.graph.resume import newest_live
from milepost.model.record import CHECKPOINT, FAILURE, FINISH, Record
from milepost.model.results import StepResult, StepType
from milepost.store import ENDED, RunSnapshot, check_number
from milepost.workflows.replay import inputs_of, primed_or_over, read
from milepost.workflows.run import Frame, StepRun
from milepost.workflows.step import do
from milepost.workflows.steps import Calls, Chooses, Invokes, Maps, Modifiers, Spreads, Step


def state_of(run: Run, node_id: str | None = None, visit: int | None = None) -> Routine[Any]:
    """Return the newest state of a run, or the state after a node's newest visit or after `visit`, superseded or not.

    For a workflow: its output once it has finished, before that its inputs by name; or the output of a step. Raises
    `CheckpointNotFoundError` if there is none.
    """
    if visit is not None:
        check_number(visit, "visit")
    latest: RunSnapshot = yield from ask(run.store, "latest", run.run_id)
    check_flow(run, latest.row)
    if node_id is None:
        if latest.point is None:
            raise NoCheckpointFoundError(run.run_id, None, "the run has neither a start record nor a checkpoint")
        if isinstance(run, StepRun) and latest.row.status != "finished":
            return (yield from _inputs_of(run))
        found = yield from run.find(ResumeRequest(), latest)
        return found.state
    record = yield from newest_live(
        run.store, run.run_id, CHECKPOINT, node_id, visit, latest.row.live if visit is None else ()
    )
    if record is None:
        raise CheckpointNotFoundError(
            run.run_id, node_id, f"there is none{f' of visit {visit}' if visit else ''} in {run.store.place}"
        )
    return (yield from _given(run, record))


def _inputs_of(run: StepRun) -> Routine[Any]:
    begun = yield from read_start(run.store, run.run_id, partial(run.store.seals.check, run.run_id))
    if begun is None:
        raise NoCheckpointFoundError(run.run_id, None, "the run has no start record")
    return run.flow.input_of(begun.state() or b"{}")


def wait_of(run: Run, wait_id: str) -> Routine[Waits | None]:
    """Return a wait as the flow declares it; None if its present code has none there."""
    node_id = wait_id.rpartition("#")[0]
    if not isinstance(run, StepRun):
        return _wait_in(cast("GraphFlow", run.flow), node_id)
    with suppress(MilepostError):
        look = yield from _looked(run)
        step, _ = look.step(node_id)
        if step is not None:
            return step.work if isinstance(step.work, Waits) else None
        graph, inside = look.graph_around(node_id)
        return None if graph is None else _wait_in(graph, inside)
    return None


def _wait_in(graph: GraphFlow, node_id: str) -> Waits | None:
    found = find_node(graph, node_id)
    return waits_of(found[1].work) if found is not None and isinstance(found[1].work, WaitWork) else None


def await_result(run: Run) -> Routine[Any]:
    """Wait for the end of a run; return its final state or output, or raise the error that it ended with."""
    return (yield from attach(run)).output


def await_output(run: Run, node_id: str) -> Routine[Any]:
    """Wait until a node or step is recorded; return the state after it, or its output.

    Raises `CheckpointNotFoundError` if the run ends without it.
    """
    while True:
        latest: RunSnapshot = yield from ask(run.store, "latest", run.run_id)
        check_flow(run, latest.row)
        record = yield from newest_live(run.store, run.run_id, CHECKPOINT, node_id, None, latest.row.live)
        if record is not None:
            return (yield from _given(run, record))
        if latest.row.status in ENDED:
            raise CheckpointNotFoundError(run.run_id, node_id, f"the run is {latest.row.status} and never recorded it")
        yield from await_change(run)


def tell_ends(run: Run, records: list[Record], chronicle: Chronicle) -> Routine[None]:
    """Give `chronicle` what it needs to tell the ends of runs and steps that are among `records`."""
    kinds = {record.kind for record in records}
    if isinstance(run, RawRun) or not isinstance(run, StepRun):
        if FINISH in kinds:
            chronicle.failures = yield from ask(run.store, "read", run.run_id, kinds=(FAILURE,))
    elif kinds & {FAILURE, FINISH}:
        with suppress(MilepostError):  # the present code does not fit the record
            look = yield from _looked(run)
            assert look.root is not None
            chronicle.results = tuple(look.root.results.values())
            failed = {record.node_id for record in records if record.kind == FAILURE}
            types = {step_id: look.type_of(step_id) for step_id in failed}
            chronicle.step_types = {step_id: kind.value for step_id, kind in types.items() if kind is not None}


def _given(run: Run, record: Record) -> Routine[Any]:
    """Return the state in a record of a graph, or the value that a workflow's code got from the recorded step."""
    if isinstance(run, RawRun):
        return (yield from run.output_in(record))
    if not isinstance(run, StepRun):
        run.store.seals.check(run.run_id, record)
        return codec_at(run.flow, record.node_id).decode(content_of(record)[1])
    look = yield from _looked(run)
    found = yield from look.read(record)
    if not isinstance(found, StepResult):
        return found
    step, _ = look.step(record.node_id)
    return found if step is not None and step.modifiers.as_result else found.output


def loaded(run: StepRun, record: Record, looks: list[WorkflowView]) -> Routine[Any]:
    """Return the contents of a workflow's record: a `StepResult`, or the state after a node of a graph in it.

    `looks` belongs to the caller, and keeps the newest look for the next record.
    """
    if not looks or looks[0].recorded.newest < record.sequence:
        looks[:] = [(yield from _looked(run))]
    return (yield from looks[0].read(record))


# -- playing a workflow's code to look at it ----------------------------------------------------------------


class WorkflowView(StepRun):
    """A workflow's code, played over the record and no further."""

    __slots__ = ("asked", "failure")

    def __init__(self, run: StepRun) -> None:
        super().__init__(run.flow, run.store, run.run_id, run.options, is_listening=False)
        self.is_awaited = run.is_awaited
        self.asked: dict[str, tuple[Step[Any], Frame]] = {}
        """Every step that the code asked for, and the frame of the workflow that asked."""
        self.failure: Exception | None = None
        """The error that stopped the code before it came to its end or to something new, or None."""

    def _asked(self, frame: Frame, asked: Any) -> Step[Any]:
        step = super()._asked(frame, asked)
        self.asked[frame.prefix + step.name] = step, frame
        return step

    def play_over(self, recorded: JournalHistory) -> Routine[None]:
        """Play the code as far as it is recorded."""
        self.know(recorded)
        self.is_live = False
        assert recorded.start is not None
        self.version = int(recorded.start.fields.get("flow_version") or 1)
        self.root = Frame(self, self.flow, "", inputs_of(self, recorded.start), None)
        routine = self.play(self.root)
        try:
            yield from _played(routine)
        except MilepostError as exc:
            self.failure = exc
        except Exception as exc:
            # The code failed at a step for good, as it is recorded.
            self.failure = getattr(exc, "error", exc)

    def step(self, step_id: str) -> tuple[Step[Any] | None, Frame | None]:
        """Return the step of that id as the code defines it, and the frame that asked for it. None: no such step."""
        if step_id in self.asked:
            return self.asked[step_id]
        outer, frame = self.step(parent_of(step_id)) if parent_of(step_id) else (None, None)
        if outer is None:
            return None, None
        name, work = step_id.rpartition("/")[2], outer.work
        if isinstance(work, Maps):
            return Step(name, Calls(work.fn, (), {}), Modifiers(compare_args=False)), frame
        inner: tuple[Step[Any], ...] = ()
        if isinstance(work, Spreads):
            inner = work.children
        elif isinstance(work, Chooses):
            inner = tuple(step for _, step in work.options)
        return next((step for step in inner if step.name == name), None), frame

    def type_of(self, step_id: str) -> StepType | None:
        """Return the type of a step; None if there is no such step in the code.

        A step that an `on_error` gave is unknown here, and taken for one that calls a function.
        """
        step, _ = self.step(step_id)
        if step is not None:
            return step.step_type
        outer, _ = self.step(parent_of(step_id))
        if outer is None or outer.modifiers.on_error is None:
            return None
        is_node = isinstance(outer.work, Invokes) and outer.work.flow.front == "graph"
        return None if is_node else StepType.PYTHON

    def read(self, record: Record) -> Routine[Any]:
        """Return the contents of a record: the result of a step, or the state after a node of a step's graph."""
        self.store.seals.check(self.run_id, record)
        step_id, fields = record.node_id, record.fields()
        if "step_type" not in fields:
            return self._state_in(record)
        step, frame = self.step(step_id)
        if step is not None and frame is not None:
            self.recorded = self.recorded.completed_by(StepRecord(record.sequence, fields, record), step_id)
            is_over, result = yield from _played(do(self, step, step_id, frame, is_child=True))
            if is_over:
                return result
            raise self._unknown(step_id)
        outer = self.recorded.done.get(parent_of(step_id))
        if outer is not None and outer.fields.get("outcome") == "recovered":
            # The record is of a step from an on_error: the step that failed has its output.
            outcome = StepRecord(record.sequence, fields, record).outcome()
            recovered = yield from self.read(outer.record)
            return outcome.result(recovered.output)
        raise self._unknown(step_id)

    def _state_in(self, record: Record) -> Any:
        graph, inside = self.graph_around(record.node_id)
        if graph is None:
            raise self._unknown(record.node_id)
        return codec_at(graph, inside).decode(content_of(record)[1])

    def graph_around(self, node_id: str) -> tuple[Any, str]:
        """Return the flow that is a step around a node, and the node's id in it; None and "" if there is no such step."""
        around = node_id
        while around := parent_of(around):
            outer, _ = self.step(around)
            if outer is not None and isinstance(outer.work, Invokes):
                return outer.work.flow, node_id.removeprefix(f"{around}/")
        return None, ""

    def _unknown(self, step_id: str) -> MilepostError:
        if isinstance(self.failure, MilepostError):
            return self.failure
        return CheckpointNotFoundError(
            self.run_id, step_id, f"it is recorded, and the code of {self.flow.name!r} does not ask for it any more"
        )


def _looked(run: StepRun) -> Routine[WorkflowView]:
    """Play the run's code over the record as it is now, and return the view."""
    latest: RunSnapshot = yield from ask(run.store, "latest", run.run_id)
    check_flow(run, latest.row)
    look = WorkflowView(run)
    _, records, parsed = yield from read(look, latest, [])
    run.know_renames(newest_renames(records))
    recorded = read_history(records, latest.row.live, run.renames, parsed)
    if recorded.start is None:
        raise NoCheckpointFoundError(run.run_id, None, "the run has no start record")
    yield from look.play_over(recorded)
    return look


def _played(routine: Routine[Any]) -> Routine[tuple[bool, Any]]:
    """Play a routine as far as it is recorded, and close it. Returns whether it came to its end, and its value."""
    is_over, value = yield from primed_or_over(routine)
    routine.close()
    return is_over, value
