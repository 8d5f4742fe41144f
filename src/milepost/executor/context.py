"""The context: user code's view of the run that it is part of.

One `Context` is made for each attempt and never changes. `current()` finds it anywhere below a node, worker threads
included. Whatever is costly to make (logger, random numbers, key) is made on first use. In another process, where an
executor runs the node, there is a `ContextElsewhere` instead, which holds only the ids.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import uuid
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast, overload

from milepost.errors import OptionError, RunCancelled, interruption
from milepost.model.events import Emitted, Event, Progress, UnrecordedEvent, surround
from milepost.model.failure import contained
from milepost.model.ids import this_process
from milepost.model.live import LiveEvent
from milepost.model.live_bodies import body_of
from milepost.model.record import Origin, parse_time
from milepost.store import Statement, check_tag, check_tag_names, read_cancel

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from random import Random

    from milepost.executor.effects import LeaseView
    from milepost.executor.journal import NullJournal
    from milepost.model.ids import Clock
    from milepost.model.live import Place
    from milepost.store import Store

__all__ = ["Context", "ContextElsewhere", "LiveOutlet", "RunScope", "current", "current_context", "run_within"]

if TYPE_CHECKING:
    import typing_extensions

    DepsT = typing_extensions.TypeVar("DepsT", default=Any)
else:
    DepsT = TypeVar("DepsT")
OtherDepsT = TypeVar("OtherDepsT")
EventT = TypeVar("EventT", bound=UnrecordedEvent)

current_context: ContextVar[Context[Any]] = ContextVar("milepost.executor.context")

_default_logger = logging.getLogger("milepost")
_queueing = threading.Lock()
"""A lock for queueing a statement: the threads of a node share its context."""


Keep = Callable[[LiveEvent], None]
"""A function that hands a live event of a run to its store in another thread. It never blocks and never fails."""


class LiveOutlet:
    """The outlet of one run for live events, while this process owns the run."""

    __slots__ = ("_journal", "_lock", "_process", "keep")

    def __init__(self, journal: NullJournal, keep: Keep) -> None:
        self.keep = keep
        self._journal = journal
        self._lock = threading.Lock()
        self._process = this_process()

    def send(
        self,
        kind: type[UnrecordedEvent],
        timestamp: float,
        node_id: str,
        visit: int,
        attempt: int,
        said: Mapping[str, Any],
    ) -> Place | None:
        """Hand an event to the store, and return its place. The threads of a run may call this at the same time.

        It has no place, and is not kept, if this process does not own the run, or not any more.
        """
        if self._process is not this_process():  # the child of a fork owns no run, and the lock may be held there
            return None
        journal = self._journal
        body = body_of(kind, said)
        with self._lock:  # events are handed over in the order of their numbers
            if journal.token is None or journal.is_released or journal.is_dropped:
                return None
            journal.live_events = number = journal.live_events + 1
            epoch = journal.epoch
            self.keep(LiveEvent(epoch, number, journal.sequence, timestamp, node_id, visit, attempt, body))
        return epoch, number


class RunScope:
    """The common part of all contexts of one run. It belongs to the core; user code sees it through `Context`."""

    __slots__ = (
        "clock",
        "deps",
        "entropy",
        "held",
        "lend",
        "live",
        "logger",
        "publish",
        "run_id",
        "store",
        "tag_names",
    )

    def __init__(
        self,
        run_id: str,
        *,
        clock: Clock,
        store: Store | None = None,
        deps: Any = None,
        logger: logging.Logger | logging.LoggerAdapter[Any] | None = None,
    ) -> None:
        self.run_id = run_id
        self.clock = clock
        self.store = store
        self.deps = deps
        self.logger = logger
        self.tag_names: set[str] = set()
        """The names of the run's tags, those that attempts have added included."""
        self.held: LeaseView | None = None
        self.entropy: str | None = None
        """The random bits of the run's start, as hex digits; None: its numbers follow from its id."""
        self.publish: Callable[[Event], None] | None = None
        """The receiver of live events in this process; None when nobody listens."""
        self.live: LiveOutlet | None = None
        """The outlet for readers in other processes; None if the store keeps no live events."""
        self.lend: Callable[[], AbstractContextManager[None]] | None = None
        """A function that lends out the run's slot in its worker for the time of a `with` block; None if it has no
        slot."""

    def send(self, kind: type[EventT], node_id: str, visit: int = 1, attempt: int = 1, **said: Any) -> EventT:
        """Make an event that no record tells, and hand it to the store for readers in other processes."""
        now, place = self.clock.time(), None
        if self.live is not None:
            place = self.live.send(kind, now, node_id, visit, attempt, said)
        epoch, number = place or (None, None)
        return kind(
            run_id=self.run_id,
            timestamp=now,
            node_id=node_id,
            visit=visit,
            attempt=attempt,
            epoch=epoch,
            number=number,
            **said,
        )


class Context(Generic[DepsT]):
    """One attempt of one visit, as a node or step sees it.

    >>> def double(ctx: Context, n: int) -> int:
    ...     ctx.tag("size", "small")
    ...     return ctx.deps["factor"] * n
    >>> graph = Graph(int).add_node("double", double).set_entry("double").add_edge("double", END).compile("doubling")
    >>> graph.run(21, store=store, run_id="r-1", deps={"factor": 2})
    42
    >>> store.list_runs()[0].tags
    {'size': 'small'}
    """

    __slots__ = (
        "_attempt",
        "_ends_at",
        "_followed_at",
        "_node_id",
        "_random",
        "_scope",
        "_source",
        "_statements",
        "_stop",
        "_tags",
        "_visit",
    )

    def __init__(
        self,
        scope: RunScope,
        node_id: str,
        visit: int = 1,
        attempt: int = 1,
        followed_at: str = "1970-01-01T00:00:00.000000Z",
        timeout: float | None = None,
    ) -> None:
        self._scope = scope
        self._node_id = node_id
        self._visit = visit
        self._attempt = attempt
        self._followed_at = followed_at
        self._ends_at = None if timeout is None else scope.clock.monotonic() + timeout
        self._tags: dict[str, str] | None = None
        self._random: Random | None = None
        self._statements: list[Statement] | tuple[()] | None = ()
        """The statements that count with the checkpoint; None: none yet; a tuple: none may, for no checkpoint follows.
        """
        self._source: Origin | None = None
        """The run in which this visit was made, if a fork of that run has copied it; else None."""
        self._stop = False

    @property
    def run_id(self) -> str:
        """The run's id; Milepost makes one if none was given."""
        return self._scope.run_id

    @property
    def node_id(self) -> str:
        """The node or step that runs."""
        return self._node_id

    @property
    def visit(self) -> int:
        """The number of this visit of the node in the run, from 1."""
        return self._visit

    @property
    def attempt(self) -> int:
        """The number of this attempt of the visit, from 1."""
        return self._attempt

    @property
    def idempotency_key(self) -> str:
        """32 hex digits: the same for all attempts of this visit, in every process, and for no other visit.

        A visit that a fork has copied keeps the key that it has in its original run.
        """
        run_id = self._scope.run_id if self._source is None else self._source.run_id
        text = f"{run_id}\0{self.node_id}\0{self.visit}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def logger(self) -> logging.LoggerAdapter[Any]:
        """A logger whose records carry run_id, node_id and attempt."""
        extra = {"run_id": self.run_id, "node_id": self.node_id, "attempt": self.attempt}
        return _RunLogger(self._scope.logger or _default_logger, extra)

    @property
    def deps(self) -> DepsT:
        """The object given as `deps=`; never stored."""
        return cast("DepsT", self._scope.deps)

    @property
    def store(self) -> Store | None:
        """The run's store, or None."""
        return self._scope.store

    @property
    def deadline(self) -> float | None:
        """Seconds left of this attempt's timeout, not below 0; None without one."""
        return None if self._ends_at is None else max(0.0, self._ends_at - self._scope.clock.monotonic())

    @property
    def cancelled(self) -> bool:
        """True when the code has to stop: the attempt's time is over, the run is cancelled, or another owner has it."""
        held = self._scope.held
        return self._stop or (held is not None and held.is_over)

    def check_cancelled(self) -> None:
        """End this attempt here if `cancelled` is true.

        `except Exception` does not catch the exception that ends it.
        """
        if self.cancelled:
            held = self._scope.held
            asked, by = read_cancel((held.cancel if held is not None else None) or "")
            reason = asked or "the attempt's time is over"
            raise interruption(
                RunCancelled(
                    f"run {self.run_id!r} is to stop in node {self.node_id!r}: {reason}",
                    run_id=self.run_id,
                    node_id=self.node_id,
                    reason=reason,
                    by=by,
                )
            )

    def now(self) -> datetime:
        """Return the time of the record before this visit: the same on a retry and after a crash."""
        return parse_time(self._followed_at)

    def random(self) -> float:
        """Return the next random number, 0 to 1.

        The numbers depend on random bits that the run has recorded at its start, on node and visit: they are the same
        again on a retry.
        """
        return self._numbers().random()

    def uuid4(self) -> uuid.UUID:
        """Return a random UUID from the source of `random()`: the same again on a retry and after a crash."""
        return uuid.UUID(int=self._numbers().getrandbits(128), version=4)

    def _numbers(self) -> Random:
        if self._random is None:
            import random  # here, as few nodes need it

            self._random = random.Random(self._seed())  # noqa: S311 - repeatable on purpose
        return self._random

    def _seed(self) -> str:
        entropy = self._scope.entropy if self._source is None else self._source.entropy
        return f"{entropy or ''}{self.idempotency_key}"

    def tag(self, key: str, value: str) -> None:
        """Add a tag to the run; it is written with this visit's checkpoint.

        Raises TypeError unless both are str, `OptionError` for NUL and lone surrogates, for more than 512 bytes in one,
        and for more than 64 tags of a run.
        """
        check_tag(key, value)
        names = self._scope.tag_names
        if key not in names:
            check_tag_names(names | {key})
            names.add(key)
        if self._tags is None:
            self._tags = {}
        self._tags[key] = value

    def with_checkpoint(self, sql: str, params: Sequence[Any] | Mapping[str, Any] = ()) -> None:
        """Execute a statement in one transaction with this visit's checkpoint: the database has both then, or neither.

        SQLite and PostgreSQL stores execute it when the function has returned, in the transaction of the checkpoint, in
        the order of the calls. `sql` is one statement with the placeholders of the store's driver (`?` or `:name` of
        sqlite3, `%s` or `%(name)s` of psycopg), `params` are bound to them. The statements of an attempt that fails are
        dropped. If a statement fails, or is one that controls the transaction, nothing is written and the attempt has
        failed, with op `commit`.

        Raises `OptionError` at once without a store, with a store that executes none, and where no checkpoint follows:
        in routers, predicates, rollbacks, the code of a workflow, and once the function has returned. TypeError for
        other types.
        """
        if not isinstance(sql, str):
            raise TypeError(f"sql is a str, not {type(sql).__name__}")
        bound: tuple[Any, ...] | Mapping[str, Any]
        if isinstance(params, Mapping):
            bound = dict(params)
        elif isinstance(params, Sequence) and not isinstance(params, (str, bytes, bytearray, memoryview)):
            bound = tuple(params)
        else:
            raise TypeError(f"params are a sequence or a mapping, not {type(params).__name__}")
        with _queueing:
            if self._statements is None:
                self._check_store()
                self._statements = []
            if isinstance(self._statements, tuple):
                raise OptionError(
                    f"no checkpoint follows in {self.node_id!r} of run {self.run_id!r} that a statement could count with: call "
                    f"ctx.with_checkpoint in the function of a node or step, before it returns",
                    option="sql",
                )
            self._statements.append(Statement(sql, bound))

    def _check_store(self) -> None:
        store = self._scope.store
        if store is not None and store.runs_statements:
            return
        which = (
            "has no store" if store is None else f"keeps its checkpoints in {store.place}, which executes no statements"
        )
        raise OptionError(
            f"run {self.run_id!r} {which}: ctx.with_checkpoint works with SQLiteStore and PostgresStore", option="store"
        )

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report how far this node is, to listeners and to `RunHandle.events` of any process. It is not recorded."""
        self._send(Progress, {"done": done, "total": total, "message": message})

    def emit(self, name: str, data: Any = None) -> None:
        """Send an event of your own, to listeners and to `RunHandle.events` of any process. It is not recorded."""
        self._send(Emitted, {"name": name, "data": data})

    def _send(self, kind: type[Progress | Emitted], said: dict[str, Any]) -> None:
        scope = self._scope
        if scope.publish is not None:
            scope.publish(scope.send(kind, self._node_id, self._visit, self._attempt, **said))
        elif scope.live is not None:  # nobody listens here: an event that is not made costs nothing
            scope.live.send(kind, scope.clock.time(), self._node_id, self._visit, self._attempt, said)

    def __repr__(self) -> str:
        return f"Context({self.run_id!r}, {self.node_id!r}, visit={self.visit}, attempt={self.attempt})"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a `ContextElsewhere`, which goes with a call to another process."""
        return ContextElsewhere, (self.run_id, self.node_id, self.visit, self.attempt, self.idempotency_key)


class ContextElsewhere:
    """The context of a function that an executor runs in another process: the ids of the attempt, and no more.

    Any other attribute raises a LookupError that says what to do.
    """

    __slots__ = ("attempt", "idempotency_key", "node_id", "run_id", "visit")

    def __init__(self, run_id: str, node_id: str, visit: int, attempt: int, idempotency_key: str) -> None:
        self.run_id = run_id
        self.node_id = node_id
        self.visit = visit
        self.attempt = attempt
        self.idempotency_key = idempotency_key

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # Python itself looks such names up
            raise AttributeError(name)
        raise LookupError(
            f"the context has no {name!r} here: node {self.node_id!r} of run {self.run_id!r} runs in another process, where "
            f"only {', '.join(self.__slots__)} are known; make what it needs inside the function or give it as an argument, "
            f"or run the node without executor="
        )

    def __repr__(self) -> str:
        return f"ContextElsewhere({self.run_id!r}, {self.node_id!r}, visit={self.visit}, attempt={self.attempt})"


class _RunLogger(logging.LoggerAdapter[Any]):
    """A logger adapter that adds to the caller's extra. That of the standard library replaces it."""

    def __init__(self, parent: logging.Logger | logging.LoggerAdapter[Any], extra: dict[str, Any]) -> None:
        # An adapter given as `logger=` would replace our extra in turn: we call its `process`, but log to its parent.
        self._adapters: list[logging.LoggerAdapter[Any]] = []
        while isinstance(parent, logging.LoggerAdapter):
            self._adapters.append(parent)
            parent = parent.logger
        super().__init__(parent, extra)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        extra = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        for adapter in self._adapters:
            msg, kwargs = adapter.process(msg, kwargs)
            extra = {**(kwargs.get("extra") or {}), **extra}
        kwargs["extra"] = extra
        return msg, kwargs


def run_within(
    context: Context[Any] | ContextElsewhere | None,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    around: Sequence[Any] = (),
) -> Any:
    """Call user code with `context` current (None: without one), inside the context managers that hooks returned."""
    if context is None:
        return contained(fn, *args)
    reset = current_context.set(cast("Context[Any]", context))
    try:
        if around:
            with surround(around, context.run_id):
                return contained(fn, *args)
        return contained(fn, *args)
    finally:
        current_context.reset(reset)


@overload
def current() -> Context[Any]: ...
@overload
def current(deps: type[OtherDepsT]) -> Context[OtherDepsT]: ...
def current(deps: type[Any] | None = None) -> Context[Any]:
    """Return the context of the node or step that the caller runs in.

    `deps` gives type checkers the type of `ctx.deps`. Raises `OptionError` if it has another type, LookupError outside
    a run. In another process, where an executor runs the function, the context is a `ContextElsewhere`.
    """
    context = current_context.get(None)
    if context is None:
        raise LookupError(
            "no run is going on here: current() works below a node or step; in a unit test use "
            "milepost.testing.context(...)"
        )
    if deps is not None and not _is_instance(context.deps, deps):
        raise OptionError(f"deps is {type(context.deps).__name__}, not {deps.__name__}: check deps=", option="deps")
    return context


def _is_instance(value: Any, kind: type[Any]) -> bool:
    try:
        return isinstance(value, kind)
    except TypeError:
        # A protocol for type checkers only, or `dict[str, int]`: isinstance cannot check it.
        return True
