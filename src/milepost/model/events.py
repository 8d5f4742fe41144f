"""The events that tell of failures, and the live ones that no record tells; the base of all events, hooks, and the log.

An event reaches its consumer after the change that it reports is durable; only those that no record tells are live,
such as `Progress` and `Emitted`. `timestamp` is POSIX seconds, durations are milliseconds.

The events here are made by runs that nobody listens to as well. `model/lifecycle.py` has the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from milepost.errors import escaped
from milepost.model.failure import contained, describe, error_of
from milepost.model.reports import Report, plain_fields

# -- The events of a run, as values that hooks and streams receive ---------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Event(Report):
    """The fields that all events have. `to_dict()` adds the event's name under `event`.

    `sequence` is the number of the record that reports the event, if the event was read from a journal.
    """

    _level: ClassVar[int] = logging.DEBUG
    """The level of the event in the log: WARNING for failures, INFO for a run."""

    run_id: str
    timestamp: float
    sequence: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the event as a dict of plain values."""
        return {"event": type(self).__name__, **plain_fields(self)}

    def _sentence(self) -> str:
        """Describe the event in one line, for the log."""
        return f"run {self.run_id!r}: {self._text()}"

    def _text(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class AttemptFailed(Event):
    """An attempt of a node failed. `retry_in` is the seconds until the next attempt, None if there is none."""

    _level: ClassVar[int] = logging.WARNING

    node_id: str
    visit: int
    attempt: int
    error: BaseException
    retry_in: float | None

    def _text(self) -> str:
        then = "no further attempt" if self.retry_in is None else f"again in {self.retry_in:.1f} s"
        return f"attempt {self.attempt} of node {self.node_id!r} failed: {describe(self.error)}; {then}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class CheckpointFailed(Event):
    """A checkpoint could not be encoded or written; `op` is encode or append."""

    _level: ClassVar[int] = logging.WARNING

    node_id: str
    op: str
    error: BaseException

    def _text(self) -> str:
        return f"checkpoint of node {self.node_id!r} not saved ({self.op}): {describe(self.error)}"


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

    _level: ClassVar[int] = logging.WARNING

    def _text(self) -> str:
        return f"node {self.node_id!r} goes on after its timeout; its result will be discarded"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Progress(UnrecordedEvent):
    """A node reports its progress: `done` of `total` (None: unknown)."""

    done: float
    total: float | None = None
    message: str = ""

    def _text(self) -> str:
        total = f" of {self.total:g}" if self.total is not None else ""
        return f"node {self.node_id!r}: {self.done:g}{total} {self.message}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Emitted(UnrecordedEvent):
    """A node sends an event of its own, with a name and data.

    A handle gives the data as plain JSON values. `omitted` says why it has none of them: the data was too large to be
    carried, or no JSON.
    """

    name: str
    data: Any = None
    omitted: str = ""

    def _text(self) -> str:
        return f"node {self.node_id!r} tells {self.name!r}"


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


def log(event: Event) -> None:
    """Log an event as one record: WARNING for failures, INFO for a run, DEBUG for the rest."""
    level = event._level
    if logger.isEnabledFor(level):
        node_id = getattr(event, "node_id", None) or getattr(event, "step_name", None)
        extra = {"run_id": event.run_id, "node_id": node_id}
        logger.log(level, "%s", event._sentence(), extra=extra)


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
