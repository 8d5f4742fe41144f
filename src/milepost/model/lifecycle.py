"""The events of the life of a run: it begins, its nodes and steps begin and end, it waits, it ends.

They are made only where somebody listens, and importing them costs a tenth of what an engine, a graph and a store take.
So the core imports them where it makes one; a run that somebody listens to has made one before it executes anything.

`state` and `result` of what was completed are decoded on access, so that an event whose state nobody reads costs no
decoding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from milepost.model.events import Event
from milepost.model.failure import describe
from milepost.model.reports import ResumeInfo, RunResult, plain_fields


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class RunStarted(Event):
    """A verb begins to run `flow`. `input` is the state that it begins with; `resumed` is None on a first start."""

    _level: ClassVar[int] = logging.INFO

    flow: str
    input: Any
    resumed: ResumeInfo | None = None

    def _sentence(self) -> str:
        how = "starts"
        if self.resumed is not None:
            info = self.resumed
            skipped = f" (skipped: {', '.join(info.skipped)})" if info.skipped else ""
            how = f"goes on at {info.next_node!r} after record {info.sequence}{skipped}"
        return f"run {self.run_id!r} of flow {self.flow!r} {how}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class NodeStarted(Event):
    """An attempt of a node is about to be called. A hook may return a context manager to surround the call."""

    node_id: str
    visit: int
    attempt: int

    def _text(self) -> str:
        return f"node {self.node_id!r} starts: visit {self.visit}, attempt {self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class NodeCompleted(Event):
    """A node has returned and, with a store, its checkpoint is durable."""

    node_id: str
    visit: int
    attempt: int
    next_node: str | None
    duration_ms: float
    outcome: str = "succeeded"
    _load: Callable[[], Any] = field(repr=False, compare=False)

    @property
    def state(self) -> Any:
        """The state after the node; a copy of the caller's own if the run has a store."""
        return self._load()

    def to_dict(self) -> dict[str, Any]:
        """Return the event as a dict of plain values, without its state."""
        return {"event": type(self).__name__, **plain_fields(self)}

    def _text(self) -> str:
        return f"node {self.node_id!r} completed in {self.duration_ms:.1f} ms, next {self.next_node!r}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class RunCompleted(Event):
    """A verb has ended; `status` is the status of the run."""

    _level: ClassVar[int] = logging.INFO

    flow: str
    status: str
    result: RunResult[Any] | None
    total_duration_ms: float
    degraded: bool = False
    missed: tuple[str, ...] = ()
    error: BaseException | None = None

    def _sentence(self) -> str:
        return _end(self, self.flow)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class WorkflowStarted(Event):
    """A verb begins to run a workflow, or to go on with it: `resumed` is None on a first start."""

    _level: ClassVar[int] = logging.INFO

    workflow_name: str
    inputs: Mapping[str, Any]
    resumed: ResumeInfo | None = None

    def _sentence(self) -> str:
        return f"run {self.run_id!r} of flow {self.workflow_name!r} {self._how()}"

    def _how(self) -> str:
        info = self.resumed
        if info is None:
            return "starts"
        if info.already_completed:
            return "has finished before"
        where = "with its code" if info.next_node is None else f"at step {info.next_node!r}"
        skipped = f" (skipped: {len(info.skipped)})" if info.skipped else ""
        return f"goes on {where} after record {info.sequence}{skipped}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class StepStarted(Event):
    """An attempt of a step begins. A hook may return a context manager to surround the call.

    `step_name` is the step's id: `outer/inner` for a step inside another.
    """

    step_name: str
    step_type: str
    attempt: int = 1
    visit: int = 1

    def _text(self) -> str:
        return f"{self.step_type} step {self.step_name!r} starts: visit {self.visit}, attempt {self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class StepCompleted(Event):
    """A step has ended and, with a store, its result is durable. `outcome` as in `StepResult`."""

    step_name: str
    step_type: str
    success: bool
    duration_ms: float
    outcome: str = "succeeded"
    _load: Callable[[], Any] = field(repr=False, compare=False)

    @property
    def result(self) -> Any:
        """The `StepResult`."""
        return self._load()

    def _text(self) -> str:
        return f"{self.step_type} step {self.step_name!r} {self.outcome} in {self.duration_ms:.1f} ms"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class WorkflowCompleted(Event):
    """A verb has ended; `result` is a `WorkflowResult`."""

    _level: ClassVar[int] = logging.INFO

    workflow_name: str
    success: bool
    result: Any
    total_duration_ms: float
    degraded: bool = False
    missed: tuple[str, ...] = ()
    error: BaseException | None = None

    def _sentence(self) -> str:
        return _end(self, self.workflow_name)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class CheckpointSaved(Event):
    """A checkpoint is durable. `size` is the size of its uncompressed state in bytes."""

    node_id: str
    sequence: int
    size: int

    def _text(self) -> str:
        return f"checkpoint {self.sequence} of node {self.node_id!r} saved: {self.size} bytes"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class RunWaiting(Event):
    """A node waits for a signal or a time; `reason` says why a reply was refused, or is empty."""

    _level: ClassVar[int] = logging.INFO

    node_id: str
    wait: Any
    reason: str = ""

    def _text(self) -> str:
        what = "a time" if self.wait.signal is None else f"signal {self.wait.signal!r}"
        until = "" if self.wait.wake_at is None else f" until {self.wait.wake_at.isoformat()}"
        # The reason of a refusal quotes the payload, which belongs in the store and not in a log.
        refused = "; the newest answer was refused" if self.reason else ""
        return f"waits at {self.wait.wait_id!r} for {what}{until}{refused}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class RunBlocked(Event):
    """A bug in the workflow's own code holds the run, which waits for the code to be mended; `error` is that bug."""

    _level: ClassVar[int] = logging.WARNING

    reason: str
    error: BaseException | None = None

    def _text(self) -> str:
        return f"blocked: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class RollbackCompleted(Event):
    """A rollback has ended; `error` is None when it succeeded."""

    step_name: str
    error: BaseException | None = None

    def _text(self) -> str:
        failed = "" if self.error is None else f", and that failed: {describe(self.error)}"
        return f"step {self.step_name!r} is rolled back{failed}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class EventsMissed(Event):
    """A number of events that no record tells did not reach this reader: it came too late, or they were lost."""

    count: int
    epoch: int

    def _text(self) -> str:
        return f"{self.count} live events of epoch {self.epoch} did not arrive"


def status_of(event: RunCompleted | WorkflowCompleted) -> str:
    """Return the status of the run at the end of a verb."""
    if isinstance(event, RunCompleted):
        return event.status
    if event.result is not None:
        return str(event.result.status)
    return "finished" if event.success else "failed"


def _end(event: RunCompleted | WorkflowCompleted, flow: str) -> str:
    why = f": {describe(event.error)}" if event.error is not None and status_of(event) != "waiting" else ""
    return f"run {event.run_id!r} of flow {flow!r} is {status_of(event)} after {event.total_duration_ms:.1f} ms{why}"
