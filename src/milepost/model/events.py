"""The events of a run, the hooks that receive them, and their sentences for the log.

An event reaches its consumer after the change that it reports is durable; only those that no record tells are live,
such as `Progress` and `Emitted`. `timestamp` is POSIX seconds, durations are milliseconds. `state` and `result` of a
completed node are decoded on access, so that an event whose state nobody reads costs no decoding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from milepost.errors import escaped
from milepost.model.failure import contained, describe, error_of
from milepost.model.reports import Report, ResumeInfo, RunResult, plain_fields

__all__ = [
    "AttemptFailed",
    "CheckpointFailed",
    "CheckpointSaved",
    "Emitted",
    "Event",
    "EventsMissed",
    "Hook",
    "NodeCompleted",
    "NodeOverdue",
    "NodeStarted",
    "Progress",
    "RollbackCompleted",
    "RunBlocked",
    "RunCompleted",
    "RunStarted",
    "RunWaiting",
    "StepCompleted",
    "StepStarted",
    "UnrecordedEvent",
    "WorkflowCompleted",
    "WorkflowStarted",
    "notify",
    "sentence",
    "status_of",
    "surround",
]


# -- The events of a run, as values that hooks and streams receive ---------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Event(Report):
    """The fields that all events have. `to_dict()` adds the event's name under `event`.

    `sequence` is the number of the record that reports the event, if the event was read from a journal.
    """

    run_id: str
    timestamp: float
    sequence: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the event as a dict of plain values."""
        return {"event": type(self).__name__, **plain_fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class RunStarted(Event):
    """A verb begins to run `flow`. `input` is the state that it begins with; `resumed` is None on a first start."""

    flow: str
    input: Any
    resumed: ResumeInfo | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class NodeStarted(Event):
    """An attempt of a node is about to be called. A hook may return a context manager to surround the call."""

    node_id: str
    visit: int
    attempt: int


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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class RunCompleted(Event):
    """A verb has ended; `status` is the status of the run."""

    flow: str
    status: str
    result: RunResult[Any] | None
    total_duration_ms: float
    degraded: bool = False
    missed: tuple[str, ...] = ()
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class WorkflowStarted(Event):
    """A verb begins to run a workflow, or to go on with it: `resumed` is None on a first start."""

    workflow_name: str
    inputs: Mapping[str, Any]
    resumed: ResumeInfo | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class StepStarted(Event):
    """An attempt of a step begins. A hook may return a context manager to surround the call.

    `step_name` is the step's id: `outer/inner` for a step inside another.
    """

    step_name: str
    step_type: str
    attempt: int = 1
    visit: int = 1


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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class WorkflowCompleted(Event):
    """A verb has ended; `result` is a `WorkflowResult`."""

    workflow_name: str
    success: bool
    result: Any
    total_duration_ms: float
    degraded: bool = False
    missed: tuple[str, ...] = ()
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class AttemptFailed(Event):
    """An attempt of a node failed. `retry_in` is the seconds until the next attempt, None if there is none."""

    node_id: str
    visit: int
    attempt: int
    error: BaseException
    retry_in: float | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class CheckpointSaved(Event):
    """A checkpoint is durable. `size` is the size of its uncompressed state in bytes."""

    node_id: str
    sequence: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class CheckpointFailed(Event):
    """A checkpoint could not be encoded or written; `op` is encode or append."""

    node_id: str
    op: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class RunWaiting(Event):
    """A node waits for a signal or a time; `reason` says why a reply was refused, or is empty."""

    node_id: str
    wait: Any
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class RunBlocked(Event):
    """A bug in the workflow's own code holds the run, which waits for the code to be mended; `error` is that bug."""

    reason: str
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class RollbackCompleted(Event):
    """A rollback has ended; `error` is None when it succeeded."""

    step_name: str
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class UnrecordedEvent(Event):
    """The fields of events that no record tells. A store keeps them for a short time, for readers in other processes.

    `epoch` and `number` identify the event in its run; numbers begin with 1 in each epoch. Both are None in a run
    whose store does not keep such events. An attempt that runs again sends its events again, as another `attempt` or
    in another epoch. A handle gives them with the `sequence` of the record that they follow.
    """

    node_id: str
    visit: int = 1
    attempt: int = 1
    epoch: int | None = None
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class NodeOverdue(UnrecordedEvent):
    """A sync node still runs after its timeout; it cannot be stopped, and its late result is discarded."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Progress(UnrecordedEvent):
    """A node reports its progress: `done` of `total` (None: unknown)."""

    done: float
    total: float | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Emitted(UnrecordedEvent):
    """A node sends an event of its own, with a name and data.

    A handle gives the data as plain JSON values. `omitted` says why it has none of them: the data was too large to be
    carried, or no JSON.
    """

    name: str
    data: Any = None
    omitted: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class EventsMissed(Event):
    """A number of events that no record tells did not reach this reader: it came too late, or they were lost."""

    count: int
    epoch: int


# -- Hooks: plain callables that get each event of a run -------------------------------------------
#
# A hook is called with one event, in the order of the journal. For `NodeStarted` it may return a context manager,
# which then surrounds the call of the node. A hook that raises is logged and never changes the run.


Hook = Callable[[Any], Any]

logger = logging.getLogger("milepost")
# A program that configures no logging hears nothing from a library; without this, warnings would go to stderr.
logger.addHandler(logging.NullHandler())


def _escape(record: logging.LogRecord) -> bool:
    """Escape what a store or user code put into a record's message or traceback and a terminal would obey."""
    with suppress(Exception):  # the `__repr__` of a user, which handlers report
        message = record.getMessage()
        if not message.replace("\n", "").isprintable():  # the lines of a worker's traceback stay
            record.msg, record.args = escaped(message, "\n"), None
        if record.exc_info and not record.exc_text:
            traceback = logging.Formatter().formatException(record.exc_info)
            if not traceback.replace("\n", "").isprintable():
                record.exc_text = escaped(traceback, "\n")
    return True


logger.addFilter(_escape)


def notify(hooks: Sequence[Hook], event: Event) -> list[AbstractContextManager[Any]]:
    """Call every hook with `event`, and return the context managers that they gave."""
    around: list[AbstractContextManager[Any]] = []
    for hook in hooks:
        try:
            answer = contained(hook, event)
        except Exception:
            logger.exception("hook %r failed at %s", hook, type(event).__name__, extra={"run_id": event.run_id})
            continue
        if isinstance(answer, AbstractContextManager):
            around.append(answer)
    return around


@contextmanager
def surround(around: Sequence[AbstractContextManager[Any]], run_id: str) -> Iterator[None]:
    """Enter the context managers for the time of a call; log one that fails, and never let it change the call."""
    with ExitStack() as stack:
        for manager in around:
            try:
                contained(manager.__enter__)
            except Exception:
                logger.exception("context manager %r of a hook failed", manager, extra={"run_id": run_id})
                continue
            stack.push(_harmless_exit(manager, run_id))
        yield


def _harmless_exit(manager: AbstractContextManager[Any], run_id: str) -> Callable[..., bool]:
    def leave(*exc_info: Any) -> bool:
        try:
            manager.__exit__(*exc_info)
        except BaseException as exc:
            # A generator-based manager raises the call's own exception again, which is being raised already.
            if exc is not exc_info[1]:
                if not isinstance(exc, Exception) and error_of(exc) is None:
                    raise
                logger.exception("context manager %r of a hook failed", manager, extra={"run_id": run_id})
        return False

    return leave


# -- Events as sentences, for the log --------------------------------------------------------------


def sentence(event: Event) -> str:
    """Describe an event in one line."""
    match event:
        case RunStarted():
            how = "starts"
            if event.resumed is not None:
                info = event.resumed
                skipped = f" (skipped: {', '.join(info.skipped)})" if info.skipped else ""
                how = f"goes on at {info.next_node!r} after record {info.sequence}{skipped}"
            text = f"run {event.run_id!r} of flow {event.flow!r} {how}"
        case WorkflowStarted():
            text = f"run {event.run_id!r} of flow {event.workflow_name!r} {_workflow_begins(event)}"
        case NodeStarted():
            text = f"node {event.node_id!r} starts: visit {event.visit}, attempt {event.attempt}"
        case NodeCompleted():
            text = f"node {event.node_id!r} completed in {event.duration_ms:.1f} ms, next {event.next_node!r}"
        case StepStarted():
            text = f"{event.step_type} step {event.step_name!r} starts: visit {event.visit}, attempt {event.attempt}"
        case StepCompleted():
            text = f"{event.step_type} step {event.step_name!r} {event.outcome} in {event.duration_ms:.1f} ms"
        case AttemptFailed():
            then = "no further attempt" if event.retry_in is None else f"again in {event.retry_in:.1f} s"
            text = f"attempt {event.attempt} of node {event.node_id!r} failed: {describe(event.error)}; {then}"
        case CheckpointSaved():
            text = f"checkpoint {event.sequence} of node {event.node_id!r} saved: {event.size} bytes"
        case CheckpointFailed():
            text = f"checkpoint of node {event.node_id!r} not saved ({event.op}): {describe(event.error)}"
        case NodeOverdue():
            text = f"node {event.node_id!r} goes on after its timeout; its result will be discarded"
        case Progress():
            total = f" of {event.total:g}" if event.total is not None else ""
            text = f"node {event.node_id!r}: {event.done:g}{total} {event.message}".rstrip()
        case Emitted():
            text = f"node {event.node_id!r} tells {event.name!r}"
        case EventsMissed():
            text = f"{event.count} live events of epoch {event.epoch} did not arrive"
        case RunWaiting():
            what = "a time" if event.wait.signal is None else f"signal {event.wait.signal!r}"
            until = "" if event.wait.wake_at is None else f" until {event.wait.wake_at.isoformat()}"
            # The reason of a refusal quotes the payload, which belongs in the store and not in a log.
            refused = "; the newest answer was refused" if event.reason else ""
            text = f"waits at {event.wait.wait_id!r} for {what}{until}{refused}"
        case RunBlocked():
            text = f"blocked: {event.reason}"
        case RollbackCompleted():
            failed = "" if event.error is None else f", and that failed: {describe(event.error)}"
            text = f"step {event.step_name!r} is rolled back{failed}"
        case RunCompleted() | WorkflowCompleted():
            flow = event.flow if isinstance(event, RunCompleted) else event.workflow_name
            why = f": {describe(event.error)}" if event.error is not None and status_of(event) != "waiting" else ""
            text = f"run {event.run_id!r} of flow {flow!r} is {status_of(event)} after {event.total_duration_ms:.1f} ms{why}"
        case _:
            text = str(event)
    names_run = isinstance(event, (RunStarted, RunCompleted, WorkflowStarted, WorkflowCompleted))
    return text if names_run else f"run {event.run_id!r}: {text}"


def status_of(event: RunCompleted | WorkflowCompleted) -> str:
    """Return the status of the run at the end of a verb."""
    if isinstance(event, RunCompleted):
        return event.status
    if event.result is not None:
        return str(event.result.status)
    return "finished" if event.success else "failed"


def _workflow_begins(event: WorkflowStarted) -> str:
    info = event.resumed
    if info is None:
        return "starts"
    if info.already_completed:
        return "has finished before"
    where = "with its code" if info.next_node is None else f"at step {info.next_node!r}"
    skipped = f" (skipped: {len(info.skipped)})" if info.skipped else ""
    return f"goes on {where} after record {info.sequence}{skipped}"
