"""The options of the verbs, which are checked before anything runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict

import msgspec
from msgspec.structs import force_setattr, replace

from milepost.errors import OptionError, shown
from milepost.model.durations import as_seconds
from milepost.model.events import Hook
from milepost.model.executors import ExecutorLike, checked_executor
from milepost.model.ids import SYSTEM, Clock
from milepost.model.record import as_posix
from milepost.model.retry import Retry
from milepost.store import check_tags


class EngineOptions(TypedDict, total=False):
    """The options that an engine may bind. `Options` explains each of them."""

    if_exists: Literal["error", "resume", "retry", "return", "continue"]
    unfinished: Literal["finish", "drop", "refuse"]
    compare_inputs: bool
    checkpoint_failure_fatal: bool
    state_override: Callable[[Any], Any] | None
    revalidate: Callable[[Any], Any] | None
    update: Mapping[str, Any] | None
    reroute: bool | None
    rename: Mapping[str, str] | None
    strict: bool
    on_corrupt: Literal["error", "previous"]
    reopen: bool
    takeover: bool
    on_locked: Literal["error", "wait"]
    on_wait: Literal["suspend", "block"]
    stop_before: str | Collection[str]
    stop_after: str | Collection[str]
    isolate: bool
    max_iterations: int | None
    retry: Retry | None
    timeout: float | timedelta | None
    run_timeout: float | timedelta | None
    max_parallel: int | None
    executor: ExecutorLike | None
    lease: float | timedelta
    max_crashes: int | None
    compress: bool | None
    warn_size: int
    max_state_size: int | None
    tags: Mapping[str, str] | None


class RunOptions(EngineOptions, total=False):
    """The options of every verb that runs something. `Options` explains each of them.

    >>> options: RunOptions = {"max_iterations": 10, "run_timeout": 60, "tags": {"team": "shop"}}
    >>> doubling.run(21, **options)
    42
    """

    turn_id: str | None
    deps: Any
    logger: logging.Logger | logging.LoggerAdapter[Any] | None
    hooks: Sequence[Hook]


class RunFilters(TypedDict, total=False):
    """The arguments of `Store.list_runs`, which explains them."""

    flow: str | None
    status: str | Iterable[str] | None
    tags: Mapping[str, str] | None
    updated_before: datetime | None
    updated_after: datetime | None
    created_before: datetime | None
    created_after: datetime | None
    run_id_prefix: str | None
    limit: int
    after: str | None


class BulkFilters(TypedDict, total=False):
    """The arguments of `Engine.requeue_all`, which explains them, and of `Engine.cancel_matching`."""

    flow: str | None
    status: str | Iterable[str] | None
    error_type: str | None
    error_node: str | None
    tags: Mapping[str, str] | None
    run_id_prefix: str | None
    created_after: datetime | None
    created_before: datetime | None
    updated_after: datetime | None
    updated_before: datetime | None
    limit: int | None
    after: str | None


if TYPE_CHECKING:
    # For overloads. With `extra_items` pyright names a misspelled option, instead of saying that no overload matches.
    # mypy does not know `extra_items`.

    class NoSuchOption:
        """The type of an option that no verb has."""

    class CheckedOptions(RunOptions, total=False, extra_items=NoSuchOption):  # type: ignore[call-arg]
        """The options of a verb that returns neither an output nor a result."""

    class OutputOptions(RunOptions, total=False, extra_items=NoSuchOption):  # type: ignore[call-arg]
        """The options of a verb that returns the flow's output."""

        full: Literal[False]

    class FullOptions(RunOptions, total=False, extra_items=NoSuchOption):  # type: ignore[call-arg]
        """The options of a verb that returns the whole result."""

        full: Required[Literal[True]]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one call, complete and checked."""

    if_exists: str = "error"
    """The treatment of a run that exists already. error: raise; resume: resume it; retry: retry the failed node or step;
    return: wait for its end; continue: begin a new turn of a run of a graph, with the given state, after the turn before
    has ended."""
    unfinished: str = "finish"
    """The treatment of a turn that has not finished, by `if_exists="continue"`. finish: it is finished first, and one
    that fails is superseded; drop: it is superseded, even while it waits or is blocked; refuse: no new turn begins."""
    turn_id: str | None = None
    """An id of the turn for `if_exists="continue"`: a turn that is recorded under it is not begun again. It is finished
    if it has not, and its state is returned; one that failed is superseded."""
    compare_inputs: bool = True
    """True: refuse to resume a run that began with another input. False: resume it with the recorded input."""
    checkpoint_failure_fatal: bool = True
    """True: stop a run whose checkpoint cannot be saved. False: go on, and mark the run as degraded."""
    state_override: Callable[[Any], Any] | None = None
    """A function that corrects the recorded state before a resume goes on; the state that it returns is recorded."""
    revalidate: Callable[[Any], Any] | None = None
    """A function that checks the state before a resume; it refuses a state if it raises, or returns False, an error or a
    text."""
    update: Mapping[str, Any] | None = None
    """Some fields of the state, applied to the recorded state as if the node had returned them; needs `Graph(partial=True)`."""
    reroute: bool | None = None
    """True: ask the router again instead of taking the recorded route. False: keep the route. None: ask again if
    `state_override` or `update` amends the state. A simple edge, a fork and a join have no router to ask; nor is a router
    asked for a run that waits or has finished."""
    rename: Mapping[str, str] | None = None
    """A map from recorded node ids to the nodes' present ids. The run records it for later resumes.

    It applies to the node where the run goes on, the node that it goes on after, and `resume_from`. Visits and attempts
    are counted on; idempotency keys and `ctx.random()` are those of the new id.
    """
    strict: bool = False
    """True: refuse a resume whenever the flow's shape has changed."""
    on_corrupt: str = "error"
    """The treatment of a damaged newest record. error: raise; previous: go on from the newest record that is whole."""
    reopen: bool = False
    """True: go on with a run that was cancelled or blocked."""
    takeover: bool = False
    """True: fence off an owner whose lease is live."""
    on_locked: str = "error"
    """The treatment of a run that another owner has. error: raise; wait: poll until the run is free."""
    on_wait: str = "suspend"
    """The treatment of a run that waits, which is parked either way. suspend: the verb raises `RunSuspended`; block: the
    verb waits, and goes on with the run once it is due."""
    stop_before: frozenset[str] = frozenset()
    """Nodes before which the run is interrupted."""
    stop_after: frozenset[str] = frozenset()
    """Nodes after which the run is interrupted."""
    isolate: bool = False
    """True: give every node a decoded copy of the state. This finds code that depends on shared references."""
    max_iterations: int | None = 1000
    """The number of nodes that a run may execute in each turn, in all processes together; 1 to 100 000, None: no limit."""
    retry: Retry | None = None
    """The retry policy of nodes without their own."""
    timeout: float | None = None
    """Seconds for an attempt of a node without its own timeout."""
    run_timeout: float | None = None
    """Seconds that this call may take in all."""
    max_parallel: int | None = None
    """The number of calls of user functions that run at once; None: no limit (threads under sync verbs: 32)."""
    executor: ExecutorLike | None = None
    """The executor of sync functions whose node, step or item has none of its own; None: they run in this process.

    A factory is called again after the pool that it made broke. Coroutine functions always run in this process, and so do
    functions that decide (routers, predicates, handlers).
    """
    lease: float = 30.0
    """Seconds for which nobody may take the run over; the lease is renewed every third of that time."""
    max_crashes: int | None = 5
    """The number of owners in a row that may die without progress; then the run is blocked. None: any number."""
    compress: bool | None = None
    """True: compress states of 1 KB or more. Otherwise only states above 1 MB are compressed."""
    warn_size: int = 100 * 1024 * 1024
    """Size of a state in bytes above which a warning is logged."""
    max_state_size: int | None = None
    """Size of a state in bytes above which the state is refused; None: no limit."""
    deps: Any = None
    """Services that nodes use as `ctx.deps`; never stored."""
    logger: logging.Logger | logging.LoggerAdapter[Any] | None = None
    """The parent of `ctx.logger`."""
    hooks: tuple[Hook, ...] = ()
    """Functions that are called with each event."""
    tags: Mapping[str, str] | None = None
    """Names and values, both texts, that a new run is tagged with. A resume adds none; `ctx.tag` does."""
    clock: Clock = SYSTEM
    """The source of time."""
    config: Any = None
    """The value of `ctx.config` in workflows."""

    @property
    def amends(self) -> bool:
        """True if the recorded state is to be amended."""
        return self.state_override is not None or self.update is not None

    def __post_init__(self) -> None:
        _one_of(self, "if_exists", ("error", "resume", "retry", "return", "continue"))
        _one_of(self, "unfinished", ("finish", "drop", "refuse"))
        _one_of(self, "on_corrupt", ("error", "previous"))
        _one_of(self, "on_locked", ("error", "wait"))
        _one_of(self, "on_wait", ("suspend", "block"))
        if self.turn_id is not None and (not isinstance(self.turn_id, str) or not 0 < len(self.turn_id) <= 200):
            raise OptionError(f"turn_id must be 1 to 200 characters, not {shown(self.turn_id)}", option="turn_id")
        for name in ("timeout", "run_timeout", "lease"):
            value = getattr(self, name)
            if value is not None:
                seconds = as_seconds(value, name)
                if seconds == 0:
                    raise OptionError(f"{name} must be more than 0 seconds", option=name)
                force_setattr(self, name, seconds)
        if self.lease is None:
            raise OptionError("lease must be seconds or a timedelta, not None", option="lease")
        if self.warn_size is None:
            raise OptionError("warn_size must be a number of bytes, not None", option="warn_size")
        _whole(self, "max_iterations", 1, 100_000)
        _whole(self, "max_parallel", 1, None)
        _whole(self, "max_crashes", 1, None)
        _whole(self, "max_state_size", 1, None)
        _whole(self, "warn_size", 1, None)
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise OptionError(
                f"retry must be a Retry, not {shown(self.retry)}: retry=Retry(max_attempts=3)", option="retry"
            )
        for name in _FLAGS:
            if type(getattr(self, name)) is not bool:
                raise OptionError(f"{name} must be True or False, not {shown(getattr(self, name))}", option=name)
        if self.reroute is not None and type(self.reroute) is not bool:
            raise OptionError(f"reroute must be True, False or None, not {shown(self.reroute)}", option="reroute")
        if self.update is not None and not isinstance(self.update, Mapping):
            raise OptionError(
                f"update must be a mapping of some of the state's fields, not {shown(self.update)}", option="update"
            )
        if self.update is not None and self.state_override is not None:
            raise OptionError("update and state_override both amend the state: give one of them", option="update")
        if self.compress is not None and type(self.compress) is not bool:
            raise OptionError(f"compress must be True, False or None, not {shown(self.compress)}", option="compress")
        checked_executor(self.executor, "a run")
        if self.clock is not SYSTEM and not isinstance(self.clock, Clock):  # checking a protocol is slow
            raise OptionError(f"clock must be a clock, such as FakeClock(), not {shown(self.clock)}", option="clock")
        if self.rename is not None:
            _check_rename(self.rename)
        for name in ("state_override", "revalidate"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise OptionError(f"{name} must be a function of the state", option=name)
        for name in ("stop_before", "stop_after"):
            force_setattr(self, name, _ids(getattr(self, name), name))
        force_setattr(self, "hooks", _hooks({"hooks": self.hooks}))
        check_tags(self.tags or {})


UNAMENDED: Mapping[str, Any] = {"state_override": None, "update": None, "reroute": None}
"""The values of the amending options with which a recorded run stays as it is."""


def without_amendments(options: Options) -> Options:
    """Return the options without amendments, for a call that only reads a run, or whose amendment is recorded already."""
    return replace(options, **UNAMENDED) if options.amends or options.reroute is not None else options


_FLAGS = ("compare_inputs", "checkpoint_failure_fatal", "strict", "reopen", "takeover", "isolate")

_NAMES = frozenset(Options.__struct_fields__)


def option_names() -> frozenset[str]:
    """Return the names of all options that a verb takes."""
    return _NAMES


def refuse_options_of_execution(given: Mapping[str, Any], options: Options) -> None:
    """Raise `OptionError` for options of a start that only the worker could honour: no record has them.

    `options` are all that the start has, `given` those of the call itself.
    """
    goes_on = options.if_exists in {"resume", "retry", "continue"}
    unused = [name for name in given if name in _OF_EXECUTION and not (goes_on and name in _OF_GOING_ON)]
    if "run_timeout" in given and options.on_locked != "wait":
        unused.append("run_timeout")
    if unused:
        verb, it = ("has", "it") if len(unused) == 1 else ("have", "them")
        raise OptionError(
            f"start executes nothing, so {', '.join(unused)} {verb} no effect there: give {it} to the worker's engine, as in "
            f"Engine(store, flows=[...], {unused[0]}=...)"
            + (f", or {unused[0]} to the node or step" if unused[0] in _OF_NODES else ""),
            option=unused[0],
        )


def start_time(at: datetime | None) -> float:
    """Return `at` in POSIX seconds, 0.0 (at once) for None. Raises `OptionError` for anything but a time with a zone."""
    if at is None:
        return 0.0
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise OptionError(f"at must be a datetime with a zone, not {shown(at)}", option="at")
    return as_posix(at)


def merge_options(base: Mapping[str, Any], call: Mapping[str, Any]) -> Options:
    """Combine the bound options with those of a call: the call's values win, hooks are added, tags are merged."""
    merged = {**base, **call}
    unknown = sorted(set(merged) - _NAMES)
    if unknown:
        raise OptionError(
            f"no option is called {', '.join(map(repr, unknown))}: {_advice(unknown[0])}", option=unknown[0]
        )
    if "hooks" in merged:
        merged["hooks"] = (*_hooks(base), *_hooks(call))
    if "tags" in merged:
        merged["tags"] = {**_tags(base), **_tags(call)}
    return Options(**merged)


def nearest(name: str) -> str | None:
    """Return the keyword of a verb that a misspelled name stands for; None if no keyword is similar."""
    from difflib import get_close_matches  # 7 ms of import that only a mistake pays for

    if name in _OTHERWISE_CALLED:
        return _OTHERWISE_CALLED[name]
    return next(iter(get_close_matches(name, (*_NAMES, "run_id", "store", "inputs", "full", "at"), 1)), None)


def check_filters(given: Mapping[str, object]) -> None:
    """Raise `OptionError` for filters that no verb for many runs has: left out, they would let every run match."""
    names = BulkFilters.__optional_keys__
    if unknown := sorted(given.keys() - names):
        from difflib import get_close_matches  # see `nearest`

        near = next(iter(get_close_matches(unknown[0], sorted(names), 1)), None)
        raise OptionError(
            f"no filter is called {', '.join(map(repr, unknown))}: "
            + (f"did you mean {near!r}?" if near else f"there are {', '.join(sorted(names))}"),
            option=unknown[0],
        )


def _advice(name: str) -> str:
    if name in _OF_A_GRAPH:
        return "it is an option of Graph(...), where the flow is built"
    near = nearest(name)
    if near == name:
        return "it is a keyword of some verbs, but not of this one, and not of an engine"
    return f"did you mean {near!r}?" if near else "the names of all options are those of milepost.RunOptions"


_OTHERWISE_CALLED = {"thread_id": "run_id", "checkpointer": "store", "recursion_limit": "max_iterations"}
"""Names that options have in other libraries, each with our name for it."""

_OF_NODES = frozenset({"retry", "timeout", "executor"})
_OF_EXECUTION = _OF_NODES | {
    "checkpoint_failure_fatal", "on_wait", "stop_before", "stop_after", "isolate", "max_iterations", "max_parallel", "lease",
    "max_crashes", "deps", "logger", "hooks",
}  # fmt: skip
"""The options that only a call that executes the run uses."""
_OF_GOING_ON = frozenset({"max_iterations", "max_crashes"})
"""Those of them that also decide whether a run that exists may go on."""

_OF_A_GRAPH = frozenset({"partial", "reducers", "types", "upgrade", "unknown_fields"})


def _hooks(options: Mapping[str, Any]) -> tuple[Hook, ...]:
    hooks = options.get("hooks") or ()
    if not isinstance(hooks, Sequence) or not all(callable(hook) for hook in hooks):
        raise OptionError(f"hooks must be a list of functions of one event, not {shown(hooks)}", option="hooks")
    return tuple(hooks)


def _tags(options: Mapping[str, Any]) -> Mapping[str, str]:
    tags = options.get("tags") or {}
    if not isinstance(tags, Mapping):
        raise TypeError(f"tags are a mapping of str to str, not {shown(tags)}")
    return tags


def _ids(value: Any, name: str) -> frozenset[str]:
    """Return one node id, or a collection of them, as a set."""
    ids = (value,) if isinstance(value, str) else value
    if not isinstance(ids, Collection) or not all(isinstance(node_id, str) for node_id in ids):
        raise OptionError(f"{name} must be a node id or several, not {shown(value)}", option=name)
    return frozenset(ids)


def _check_rename(rename: Any) -> None:
    if not isinstance(rename, Mapping) or not all(
        isinstance(node_id, str) for pair in rename.items() for node_id in pair
    ):
        raise OptionError(f"rename must map recorded node ids to present ones, not {shown(rename)}", option="rename")


def _one_of(options: Options, name: str, allowed: tuple[str, ...]) -> None:
    value = getattr(options, name)
    if value not in allowed:
        raise OptionError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {shown(value)}", option=name)


def _whole(options: Options, name: str, low: int, high: int | None) -> None:
    value = getattr(options, name)
    if value is None:
        return
    if type(value) is not int or value < low or (high is not None and value > high):
        limits = f"from {low} to {high}" if high is not None else f"of at least {low}"
        raise OptionError(f"{name} must be a whole number {limits}, not {shown(value)}", option=name)
