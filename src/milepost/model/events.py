"""The events of a run, as values that hooks and streams receive.

An event reaches its consumer after the change that it reports is durable; only `Progress` and `Emitted` are live
and not recorded. `timestamp` is POSIX seconds, durations are milliseconds. `state` and `result` of a completed node
are decoded on access, so that an event whose state nobody reads costs no decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from milepost.model.reports import ResumeInfo, RunResult, plain_fields

__all__ = [
    "AttemptFailed",
    "CheckpointFailed",
    "CheckpointSaved",
    "Emitted",
    "Event",
    "NodeCompleted",
    "NodeOverdue",
    "NodeStarted",
    "Progress",
    "RollbackCompleted",
    "RunCompleted",
    "RunStarted",
    "RunWaiting",
    "StepCompleted",
    "StepStarted",
    "WorkflowCompleted",
    "WorkflowStarted",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The fields that all events have. `to_dict()` adds the event's name under `event`.

    `sequence` is the number of the record that reports the event, if the event was read from a journal.
    """

    run_id: str
    timestamp: float
    sequence: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the event as a dict of plain values."""
        return {"event": type(self).__name__, **plain_fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """A verb begins to run `flow`. `input` is the state that it begins with; `resumed` is None on a first start."""

    flow: str
    input: Any
    resumed: ResumeInfo | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStarted(Event):
    """An attempt of a node is about to be called. A hook may return a context manager to surround the call."""

    node_id: str
    visit: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCompleted(Event):
    """A verb has ended; `status` is the status of the run."""

    flow: str
    status: str
    result: RunResult[Any] | None
    total_duration_ms: float
    degraded: bool = False
    missed: tuple[str, ...] = ()
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowStarted(Event):
    """A verb begins to run a workflow, or to go on with it: `resumed` is None on a first start."""

    workflow_name: str
    inputs: Mapping[str, Any]
    resumed: ResumeInfo | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted(Event):
    """An attempt of a step begins. A hook may return a context manager to surround the call.

    `step_name` is the step's id: `outer/inner` for a step inside another.
    """

    step_name: str
    step_type: str
    attempt: int = 1
    visit: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowCompleted(Event):
    """A verb has ended; `result` is a `WorkflowResult`."""

    workflow_name: str
    success: bool
    result: Any
    total_duration_ms: float
    degraded: bool = False
    missed: tuple[str, ...] = ()
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed(Event):
    """An attempt of a node failed. `retry_in` is the seconds until the next attempt, None if there is none."""

    node_id: str
    visit: int
    attempt: int
    error: BaseException
    retry_in: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Event):
    """A checkpoint is durable. `size` is the size of its uncompressed state in bytes."""

    node_id: str
    sequence: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed(Event):
    """A checkpoint could not be encoded or written; `op` is encode or append."""

    node_id: str
    op: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWaiting(Event):
    """A node waits for a signal or a time; `reason` says why a reply was refused, or is empty."""

    node_id: str
    wait: Any
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackCompleted(Event):
    """A rollback has ended; `error` is None when it succeeded."""

    step_name: str
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOverdue(Event):
    """A sync node still runs after its timeout; it cannot be stopped, and its late result is discarded."""

    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Event):
    """A node reports its progress: `done` of `total` (None: unknown)."""

    node_id: str
    done: float
    total: float | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted(Event):
    """A node sends an event of its own, with a name and data."""

    node_id: str
    name: str
    data: Any = None
