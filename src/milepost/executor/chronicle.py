"""A journal's records as events: those of the run itself, for readers at another time or in another place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from milepost.errors import CheckpointCorruptError, DeserializeStateError, MilepostError
from milepost.executor.flow import Flow, codec_at
from milepost.executor.history_values import StepRecord, parent_of, refused_answer, wait_of
from milepost.model.beginning import BEGIN, is_incomplete
from milepost.model.events import AttemptFailed, Event
from milepost.model.failure import (
    first_line,
    is_branch_error,
    recorded_branch_error,
    recorded_error,
    recorded_step_error,
)
from milepost.model.info import Wait
from milepost.model.lifecycle import (
    NodeCompleted,
    RollbackCompleted,
    RunBlocked,
    RunCompleted,
    RunStarted,
    RunWaiting,
    StepCompleted,
    WorkflowCompleted,
    WorkflowStarted,
)
from milepost.model.record import (
    CHECKPOINT,
    CONTINUE,
    FAILURE,
    FINISH,
    OWNER,
    REPLY,
    ROLLBACK,
    START,
    WAIT,
    Record,
    parse_time,
)
from milepost.model.reports import ResumeInfo
from milepost.model.results import RollbackError, SkipMarker, StepResult, StepType, WorkflowResult


class Chronicle:
    """A reader that turns the records of one run, given in order, into events.

    `load` reads the value in a step's record: its `StepResult`, or the state after a node of a graph that is a step. It
    is called when somebody looks at the value; None: the flow's codec decodes the recorded JSON. If `flow` does not say
    which front end it is of, the start record does.
    """

    def __init__(self, run_id: str, flow: Flow, load: Callable[[Record], Any] | None = None) -> None:
        self._run_id = run_id
        self._flow = flow
        self._is_workflow = getattr(flow, "front", "graph") == "workflow"
        self._load = load
        self._began: float | None = None
        self._waits: dict[str, Wait] = {}
        self._final: tuple[Mapping[str, Any], str] | None = None
        """The fields of the failure record that ends the run, and its node or step; None before there is one."""
        self._rollback_errors: tuple[RollbackError, ...] = ()
        self._unended: dict[str, tuple[int, StepCompleted]] = {}
        """The steps whose newest record is a failure, each with that record's number and the event if it is the end."""
        self.results: tuple[StepResult, ...] = ()
        """The results of a workflow's steps, for the event of its end. The caller sets them before that."""
        self.step_types: Mapping[str, str] = {}
        """The types of the steps that failed, by id, which their records do not have. The caller sets them before that.

        A step without a type here has no event of its end if it left only failures.
        """
        self.failures: Sequence[Record] = ()
        """The failure records of a graph, for the event of its end. The caller sets them before that."""

    def tell(self, record: Record) -> Iterator[Event]:
        """Make the events of a record, each with the record's `sequence`; none for a record that is no event.

        None as well for a record from outside and for a damaged one.
        """
        try:
            fields = record.fields()
            common: dict[str, Any] = {"run_id": self._run_id, "sequence": record.sequence}
            common["timestamp"] = parse_time(fields["timestamp"]).timestamp()
        except (CheckpointCorruptError, KeyError, TypeError, ValueError):
            return  # from outside, or damaged: verify() reports that
        if self._began is None:
            self._began = common["timestamp"]
        self._is_workflow = self._is_workflow or fields.get("front") == "workflow"
        if record.kind == START or (record.kind == OWNER and fields.get("verb") not in {BEGIN, "delete"}):
            yield self._started(record, fields, common)
        elif record.kind == CHECKPOINT:
            self._unended.pop(record.node_id, None)
            yield from self._failed_steps(f"{record.node_id}/", common)
            yield self._completed(record, fields, common)
        elif record.kind == FAILURE:
            yield from self._attempt(record, fields, common)
        elif record.kind in {WAIT, REPLY}:
            yield from self._waiting(record, fields, common)
        elif record.kind == ROLLBACK:
            around = parent_of(record.node_id)
            yield from self._failed_steps(f"{around}/" if around else "", common)
            yield self._undone(record, fields, common)
        elif record.kind == FINISH:
            if fields.get("status") != "finished":
                yield from self._failed_steps("", common)
            yield self._ended(record, fields, common)

    # -- one kind of record each -----------------------------------------------------------------------

    def _started(self, record: Record, fields: Mapping[str, Any], common: dict[str, Any]) -> Event:
        is_first = record.kind == START
        self._final = None
        since = fields.get("from", -1)
        self._unended = {step: failed for step, failed in self._unended.items() if failed[0] <= since}
        is_turn = fields.get("verb") == CONTINUE
        if is_turn:
            self._began = common["timestamp"]
        given = self._given(record, fields) if is_first or is_turn else None
        resumed = None if is_first else self._resumed(fields)
        if self._is_workflow:
            return WorkflowStarted(workflow_name=self._flow.name, inputs=given or {}, resumed=resumed, **common)
        return RunStarted(flow=self._flow.name, input=given, resumed=resumed, **common)

    def _given(self, record: Record, fields: Mapping[str, Any]) -> Any:
        """Return the input of a run or turn; plain JSON if the run was started by name, and the input does not fit."""
        data = record.state() or b"null"
        if record.kind == OWNER or not is_incomplete(fields):
            return self._flow.codec.decode(data)
        try:
            return self._flow.input_of(data)
        except DeserializeStateError:
            return msgspec.json.decode(data)

    def _completed(self, record: Record, fields: Mapping[str, Any], common: dict[str, Any]) -> Event:
        duration = fields.get("duration_ms", 0.0)
        if "step_type" in fields:
            outcome = str(fields.get("outcome", "succeeded"))
            return StepCompleted(
                step_name=record.node_id,
                step_type=str(fields["step_type"]),
                success=outcome != "failed",
                duration_ms=duration,
                outcome=outcome,
                _load=lambda: self._loaded(record),
                **common,
            )
        return NodeCompleted(
            node_id=record.node_id,
            visit=record.visit,
            attempt=fields.get("attempt", 1),
            next_node=fields.get("next_node"),
            duration_ms=duration,
            _load=lambda: self._loaded(record),
            **common,
        )

    def _loaded(self, record: Record) -> Any:
        if self._load is not None:
            return self._load(record)
        return codec_at(self._flow, record.node_id).decode(record.state() or b"null")

    def _attempt(self, record: Record, fields: Mapping[str, Any], common: dict[str, Any]) -> Iterator[Event]:
        """Make the event of a failed attempt, and those of steps that ended with it: inside the step, or the step itself."""
        if fields.get("final"):
            self._final = fields, record.node_id
        if fields.get("held"):
            yield from self._failed_steps("", common)
            error = self._error(fields, "")
            yield RunBlocked(reason=first_line(error), error=error, **common)
        if self._is_workflow and not record.node_id:
            return  # the code between steps failed, which is no attempt of anything: the event of the end reports it
        yield from self._failed_steps(f"{record.node_id}/", common)
        yield AttemptFailed(
            node_id=record.node_id,
            visit=record.visit,
            attempt=fields.get("attempt", 1),
            error=self._error(fields, record.node_id),
            retry_in=self._pause(fields, common["timestamp"]),
            **common,
        )
        if record.node_id in self.step_types:
            ended = self._failed(record, fields, common)
            if fields.get("final") or fields.get("caught"):
                self._unended.pop(record.node_id, None)
                yield ended
            else:
                self._unended[record.node_id] = record.sequence, ended

    def _failed(self, record: Record, fields: Mapping[str, Any], common: dict[str, Any]) -> StepCompleted:
        """Make the event of a step that ends with a failure and leaves no other record of its end."""
        kind, error_type = self.step_types[record.node_id], str(fields.get("error_type"))
        name = record.node_id.rpartition("/")[2]
        error = str(fields.get("message") or error_type)
        result = StepResult(
            name, StepType(kind), False, None, 0.0, error, error_type, "failed", fields.get("attempt", 1)
        )
        return StepCompleted(
            step_name=record.node_id,
            step_type=kind,
            success=False,
            duration_ms=0.0,
            outcome="failed",
            _load=lambda: result,
            **common,
        )

    def _failed_steps(self, prefix: str, common: dict[str, Any]) -> Iterator[Event]:
        """Make the events of steps that have ended with a failure, now that nothing can follow it, innermost first."""
        ended = [step for step in self._unended if step.startswith(prefix)]
        for step in sorted(ended, key=lambda step: -step.count("/")):
            yield replace(self._unended.pop(step)[1], **common)

    def _waiting(self, record: Record, fields: Mapping[str, Any], common: dict[str, Any]) -> Iterator[Event]:
        """Make the event of a step that begins to wait, or waits on after an answer that was refused."""
        wait_id = str(fields.get("wait_id"))
        if record.kind == WAIT:
            self._waits[wait_id] = wait_of(fields, record.state())
        elif not fields.get("refused"):
            return
        wait = self._waits.get(wait_id) or Wait(wait_id, None)
        if record.kind != WAIT:
            wait = self._waits[wait_id] = replace(wait, refused=refused_answer(fields))
        yield RunWaiting(node_id=record.node_id, wait=wait, reason=str(fields.get("refused") or ""), **common)

    def _undone(self, record: Record, fields: Mapping[str, Any], common: dict[str, Any]) -> Event:
        error = None
        if fields.get("message") is not None:
            error = self._error(fields, record.node_id)
            failed = RollbackError(record.node_id, str(fields["message"]))
            self._rollback_errors = (*self._rollback_errors, failed)
        return RollbackCompleted(step_name=record.node_id, error=error, **common)

    def _ended(self, record: Record, fields: Mapping[str, Any], common: dict[str, Any]) -> Event:
        status = str(fields.get("status"))
        error: MilepostError | None = None
        if status == "failed":
            if not self._is_workflow and is_branch_error(fields):
                error = recorded_branch_error(self._run_id, fields, self.failures)
            else:
                error = self._error(*(self._final or (fields, "")))
        assert self._began is not None
        passed = (common["timestamp"] - self._began) * 1000
        if not self._is_workflow:
            return RunCompleted(
                flow=self._flow.name, status=status, result=None, total_duration_ms=passed, error=error, **common
            )
        output = None
        if status == "finished":
            codec = getattr(self._flow, "output_codec", self._flow.codec)
            output = codec.decode(record.state() or b"null", root="output")
        result: WorkflowResult[Any] = WorkflowResult(
            workflow_name=self._flow.name,
            success=status == "finished",
            step_results=self.results,
            total_duration_ms=passed,
            output=output,
            rollback_errors=self._rollback_errors,
            run_id=self._run_id,
            status=status,
            error=error,
        )
        return WorkflowCompleted(
            workflow_name=self._flow.name,
            success=result.success,
            result=result,
            total_duration_ms=passed,
            error=error,
            **common,
        )

    def _error(self, fields: Mapping[str, Any], node_id: str) -> MilepostError:
        common = recorded_step_error if self._is_workflow else recorded_error
        return common(self._run_id, fields, node_id)

    def _resumed(self, fields: Mapping[str, Any]) -> ResumeInfo:
        return ResumeInfo(
            run_id=self._run_id,
            source="latest",
            from_node=None,
            sequence=fields.get("from", -1),
            visit=0,
            next_node=None,
            superseded=str(fields.get("reason", "")) if fields.get("verb") == CONTINUE else "",
        )

    def _pause(self, fields: Mapping[str, Any], failed_at: float) -> float | None:
        if "retry_at" not in fields:
            return None
        return max(0.0, parse_time(fields["retry_at"]).timestamp() - failed_at)


class Undecoded:
    """A stand-in for a flow and its codec, which leaves states and outputs as the recorded JSON."""

    problems: tuple[tuple[str, str], ...] = ()

    def __init__(self, name: str, front: str) -> None:
        self.name = name
        self.front = front

    @property
    def codec(self) -> Any:
        """Itself."""
        return self

    output_codec = codec

    @staticmethod
    def decode(data: bytes, *, root: str = "state") -> Any:
        """Parse the recorded JSON."""
        return msgspec.json.decode(data)

    def input_of(self, data: bytes) -> Any:
        """Parse the recorded JSON."""
        return self.decode(data)

    @staticmethod
    def encode(value: Any, *, root: str = "state") -> bytes:
        """Return the JSON again."""
        return msgspec.json.encode(value)


def undecoded_result(record: Record) -> Any:
    """Return the result in a step's record, with its output as JSON. For a node of a graph that is a step, return the state."""
    if "step_type" not in record.fields():
        return Undecoded.decode(record.state() or b"null")
    outcome = StepRecord(record.sequence, record.fields(), record).outcome()
    output = Undecoded.decode(bytes(outcome.output))
    if outcome.outcome == "skipped":
        output = SkipMarker(str(output.get("reason", "")) if isinstance(output, dict) else "")
    return outcome.result(output)
