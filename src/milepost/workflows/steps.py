"""Steps as values: what is to be done, and how. Immutable; nothing here runs anything.

`step(name)` is completed by a kind (`.python(f)`, `.map(f, items)`, ...). Modifiers stand before or after the kind, in any
order, and mean the same. A workflow hands a step to the core by `yield`, typed by `yield from`, or in an `async def` by
`await`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from inspect import CO_COROUTINE, iscoroutinefunction
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, Never, Self, TypeVar, TypeVarTuple, cast, overload

import msgspec

from milepost.errors import DuplicateStepNameError, OptionError, shown
from milepost.executor.waits import Waits
from milepost.model.durations import as_seconds
from milepost.model.executors import ExecutorLike, checked_executor
from milepost.model.results import (
    BranchResult,
    ParallelResult,
    Reply,
    SkipMarker,
    StepResult,
    StepType,
    SubWorkflowInvocationResult,
)
from milepost.model.retry import Retry
from milepost.store import check_id
from milepost.verbs import Bound, InputVerbs, StateVerbs, flow_of

if TYPE_CHECKING:
    from milepost.workflows.definition import Workflow

__all__ = [
    "Calls",
    "Chooses",
    "Invokes",
    "Maps",
    "Modifiers",
    "Named",
    "Spreads",
    "Step",
    "StepType",
    "Steps",
    "branch",
    "is_async",
    "name_of",
    "parallel",
    "step",
]

R = TypeVar("R")
T = TypeVar("T")
ItemT = TypeVar("ItemT")
OutputT = TypeVar("OutputT", covariant=True)
ElseT = TypeVar("ElseT")
"""The type of a step's result beside the output of its work: a `SkipMarker`, a fallback's output; Never: nothing."""
Ts = TypeVarTuple("Ts")

Steps = Generator[Any, Any, R]
"""The return type of a workflow generator that returns R."""


class Modifiers(msgspec.Struct, frozen=True):
    """The options of how a step is done. Their order of effect is fixed, whatever the order of writing."""

    when: Callable[[Any], Any] | None = None
    retry: Retry | None = None
    timeout: float | None = None
    on_error: Callable[[Any, Any], Any] | None = None
    skip_on_error: bool = False
    as_result: bool = False
    rollback: Callable[..., Any] | None = None
    rollback_retry: Retry | None = None
    checkpoint: bool = False
    compare_args: bool | None = None
    """False: the arguments of the step are not compared on a resume. True and None: they must be as recorded."""
    must_succeed: bool = False


_PLAIN = Modifiers()


class Calls:
    """A call of a function. Its arguments are compared on a resume."""

    __slots__ = ("args", "executor", "fn", "kwargs")
    step_type = StepType.PYTHON

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        executor: ExecutorLike | None = None,
    ) -> None:
        self.fn = fn
        self.args = args
        self.kwargs = kwargs
        self.executor = executor

    @property
    def is_async(self) -> bool:
        """True if a call gives a coroutine. It is computed on demand, because a replay does not need it."""
        return is_async(self.fn)


class Maps:
    """A call of a function for each of several items, at most `max_parallel` at once."""

    __slots__ = ("executor", "fn", "is_async", "items", "key", "max_parallel")
    step_type = StepType.MAP

    def __init__(
        self,
        fn: Callable[..., Any],
        items: tuple[Any, ...],
        key: Callable[[Any], str] | None,
        max_parallel: int | None,
        executor: ExecutorLike | None = None,
    ) -> None:
        self.fn = fn
        self.items = items
        self.key = key
        self.max_parallel = max_parallel
        self.executor = executor
        self.is_async = is_async(fn)


class Invokes:
    """A run of another flow, a workflow or a graph, inside the same journal."""

    __slots__ = ("flow", "given")
    step_type = StepType.SUBWORKFLOW

    def __init__(self, flow: Any, given: Any) -> None:
        self.flow = flow
        self.given = given
        """A workflow's inputs by name, or a graph's state."""


class Chooses:
    """A choice: the first of several steps whose predicate is true is done."""

    __slots__ = ("options",)
    step_type = StepType.BRANCH

    def __init__(self, options: tuple[tuple[Callable[[Any], Any], Step[Any]], ...]) -> None:
        self.options = options


class Spreads:
    """Several steps at once."""

    __slots__ = ("children", "max_parallel")
    step_type = StepType.PARALLEL

    def __init__(self, children: tuple[Step[Any], ...], max_parallel: int | None) -> None:
        self.children = children
        self.max_parallel = max_parallel


Work = Calls | Maps | Invokes | Chooses | Spreads | Waits


class StepDefinition:
    """A name and modifiers: the part that a step has both before and after its kind is chosen."""

    __slots__ = ("modifiers", "name")

    name: str
    modifiers: Modifiers

    def __init__(self, name: str, modifiers: Modifiers) -> None:
        _set_name(self, name)
        _set_modifiers(self, modifiers)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"step {self.name!r} never changes: make another one instead of setting {name!r}")

    def _with(self, **changes: Any) -> Any:
        for name in changes:
            if getattr(self.modifiers, name) != getattr(_PLAIN, name):
                raise ValueError(f"step {self.name!r} has .{_METHODS.get(name, name)}() already: say it once")
        return self._copy(msgspec.structs.replace(self.modifiers, **changes))

    def _copy(self, modifiers: Modifiers) -> Any:
        raise NotImplementedError

    # Modifiers that leave the step's type as it is.

    @overload
    def retry(self, max_attempts: Retry, /) -> Self: ...
    @overload
    def retry(self, max_attempts: int, backoff: float | timedelta | None = None) -> Self: ...
    def retry(
        self, max_attempts: int | Retry | None = None, backoff: float | timedelta | None = None, **unknown: Any
    ) -> Self:
        """Try again if the call fails: `max_attempts` in all, with pauses that double from `backoff` (None: 1 s) on.

        Give a `Retry` for anything else. Raises `OptionError` for values that make no sense.
        """
        if unknown or max_attempts is None:
            names = ", ".join(map(repr, unknown)) or "no max_attempts"
            raise OptionError(
                f".retry() of step {self.name!r} was given {names}: it takes max_attempts and backoff, or a Retry, which "
                f"has all other options",
                option=next(iter(unknown), "max_attempts"),
            )
        policy = max_attempts
        if not isinstance(policy, Retry):
            policy = Retry(policy, backoff=1.0 if backoff is None else as_seconds(backoff, "backoff"))
        elif backoff is not None:
            raise ValueError(f"step {self.name!r}: a Retry has its own backoff: say it there")
        return cast("Self", self._with(retry=policy))

    def timeout(self, seconds: float | timedelta) -> Self:
        """End an attempt after that long. For a wait for a signal this is the same as its own `timeout=`.

        Inside a step of several steps that has one nothing may wait, because a run that is parked has no attempt that
        could end: the run is held. Raises ValueError for a timer, whose end is known.
        """
        limit = as_seconds(seconds, "timeout")
        if limit == 0:
            raise ValueError(f"timeout of step {self.name!r} must be more than 0 seconds")
        return cast("Self", self._with(timeout=limit))

    def with_rollback(self, fn: Callable[..., Any], *, retry: Retry | None = None) -> Self:
        """Undo the step with `fn(ctx)` or `fn(ctx, output)` if it succeeded and the run fails or is cancelled later."""
        return cast("Self", self._with(rollback=_callable(fn, self.name, "with_rollback"), rollback_retry=retry))

    def checkpoint(self) -> Self:
        """Mark a point that must be durable before the workflow goes on, and that stores of marked points list."""
        return cast("Self", self._with(checkpoint=True))

    def compare_args(self, is_compared: bool) -> Self:
        """Compare the arguments on a resume or, if False, take the recorded result whatever the arguments are now."""
        return cast("Self", self._with(compare_args=is_compared))

    def must_succeed(self) -> Self:
        """Let a group fail if one of its steps fails, after all its steps have ended."""
        return cast("Self", self._with(must_succeed=True))


def _refuse_limit(name: str, work: Work, modifiers: Modifiers) -> None:
    """Raise ValueError for a timer with a timeout."""
    if modifiers.timeout is not None and isinstance(work, Waits) and work.signal is None:
        raise ValueError(f"step {name!r} sleeps, and .timeout() does not end that: sleep for less, or leave it out")


_set_name = vars(StepDefinition)["name"].__set__
_set_modifiers = vars(StepDefinition)["modifiers"].__set__


class Named(StepDefinition, Generic[ElseT]):
    """A step without a kind yet."""

    __slots__ = ()

    def _copy(self, modifiers: Modifiers) -> Named[Any]:
        return Named(self.name, modifiers)

    def __repr__(self) -> str:
        return f"step({self.name!r})"

    def when(self, predicate: Callable[[Any], bool | Awaitable[bool]]) -> Named[ElseT | SkipMarker]:
        """Skip the step unless `predicate(ctx)` is True; an exception skips it too. Asked once, and recorded."""
        return cast("Named[ElseT | SkipMarker]", self._with(when=_callable(predicate, self.name, "when")))

    @overload
    def on_error(self, handler: Callable[[Any, StepResult], Step[T]]) -> Named[ElseT | T]: ...
    @overload
    def on_error(self, handler: Callable[[Any, StepResult], Awaitable[Step[T]]]) -> Named[ElseT | T]: ...
    def on_error(self, handler: Any) -> Any:
        """Let `handler(ctx, failed_result)` give another step after the last attempt.

        The result of that step counts instead.
        """
        return self._with(on_error=_callable(handler, self.name, "on_error"))

    def skip_on_error(self) -> Named[ElseT | SkipMarker]:
        """Count the step as skipped if it fails."""
        return cast("Named[ElseT | SkipMarker]", self._with(skip_on_error=True))

    def as_result(self) -> NamedResult[ElseT]:
        """Give the `StepResult` instead of the output, failed or not; a failure does not end the workflow."""
        return cast("NamedResult[ElseT]", self._with(as_result=True))

    @overload
    def python(self, fn: Callable[[*Ts], Awaitable[R]], args: tuple[*Ts]) -> Step[R | ElseT]: ...
    @overload
    def python(self, fn: Callable[[*Ts], R], args: tuple[*Ts]) -> Step[R | ElseT]: ...
    @overload
    def python(self, fn: Callable[[], Awaitable[R]]) -> Step[R | ElseT]: ...
    @overload
    def python(self, fn: Callable[[], R]) -> Step[R | ElseT]: ...
    @overload
    def python(
        self, fn: Callable[..., Awaitable[R]], args: tuple[Any, ...] = (), *, kwargs: Mapping[str, Any] | None
    ) -> Step[R | ElseT]: ...
    @overload
    def python(
        self, fn: Callable[..., R], args: tuple[Any, ...] = (), *, kwargs: Mapping[str, Any] | None
    ) -> Step[R | ElseT]: ...
    def python(self, fn: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `fn(*args, **kwargs)`, sync or async. Type checkers compare `args` with the parameters, not `kwargs`."""
        if not callable(fn):
            _callable(fn, self.name, "python")
        if type(args) is not tuple and (isinstance(args, (str, bytes)) or not isinstance(args, Iterable)):
            raise TypeError(f"args of step {self.name!r} must be a tuple: python(f, args=({shown(args)},))")
        return Step(self.name, Calls(fn, tuple(args), dict(kwargs) if kwargs else {}), self.modifiers)

    @overload
    def map(
        self, fn: Callable[[ItemT], Awaitable[R]], items: Iterable[ItemT], *,
        key: Callable[[ItemT], str] | None = None, max_parallel: int | None = None,
    ) -> Step[list[R] | ElseT]: ...  # fmt: skip
    @overload
    def map(
        self, fn: Callable[[ItemT], R], items: Iterable[ItemT], *,
        key: Callable[[ItemT], str] | None = None, max_parallel: int | None = None, executor: ExecutorLike | None = None,
    ) -> Step[list[R] | ElseT]: ...  # fmt: skip
    def map(
        self,
        fn: Any,
        items: Any,
        *,
        key: Any = None,
        max_parallel: int | None = None,
        executor: ExecutorLike | None = None,
    ) -> Any:
        """Call `fn(item)` for each item, at most `max_parallel` at once, and give a list of the results in item order.

        Each item is recorded for itself, under its index or the result of `key(item)`. `executor` is an executor, or a
        factory of one, in which a plain function is called. Raises `OptionError` for anything else, and for an executor
        of a coroutine function.
        """
        _callable(fn, self.name, "map")
        if not isinstance(items, Iterable):
            raise TypeError(f"step {self.name!r} maps over items, not {shown(items)}: map(f, [{shown(items)}])")
        if key is not None:
            _callable(key, self.name, "map")
        checked_executor(executor, f"map {self.name!r}", is_async=is_async(fn))
        work = Maps(fn, tuple(items), key, _positive(max_parallel, self.name), executor)
        return Step(self.name, work, self.modifiers)

    @overload
    def subworkflow(
        self, wf: Workflow[..., R], inputs: Mapping[str, Any] | None = None
    ) -> Step[SubWorkflowInvocationResult[R] | ElseT]: ...
    @overload
    def subworkflow(self, wf: StateVerbs[R], inputs: R) -> Step[SubWorkflowInvocationResult[R] | ElseT]: ...
    @overload
    def subworkflow(self, wf: Bound[R]) -> Step[SubWorkflowInvocationResult[R] | ElseT]: ...
    def subworkflow(self, wf: Any, inputs: Any = None) -> Any:
        """Run another workflow with `inputs` by name, or a compiled graph on the state `inputs`.

        A `Bound` has its own inputs.
        """
        if isinstance(wf, Bound):
            if inputs is not None:
                raise TypeError(f"step {self.name!r}: a bound flow has its inputs already: leave them out")
            wf, inputs = wf.flow, wf.state
        elif isinstance(wf, InputVerbs):
            inputs = wf._inputs_of((), dict(inputs or {}))
        elif not isinstance(wf, StateVerbs):
            raise TypeError(f"step {self.name!r}: {shown(wf)} is no workflow and no compiled graph")
        elif inputs is None:
            raise TypeError(f"step {self.name!r}: a graph begins with a state: subworkflow(graph, state)")
        return Step(self.name, Invokes(flow_of(wf), inputs), self.modifiers)

    def branch(self, *options: tuple[Callable[[Any], bool | Awaitable[bool]], Step[Any]]) -> Step[BranchResult | ElseT]:
        """Do the step of the first predicate that is True. The choice is recorded."""
        if not options:
            raise ValueError(f"branch {self.name!r} needs at least one (predicate, step)")
        for option in options:
            if not isinstance(option, tuple) or len(option) != 2 or not isinstance(option[1], Step):
                raise TypeError(f"branch {self.name!r} takes pairs of predicate and step, not {shown(option)}")
            _callable(option[0], self.name, "branch")
        return Step(self.name, Chooses(options), self.modifiers)

    def parallel(self, steps: Iterable[Step[Any]], max_parallel: int | None = None) -> Step[ParallelResult | ElseT]:
        """Do the steps at once. Raises `DuplicateStepNameError` if two have the same name."""
        children = tuple(steps)
        seen: set[str] = set()
        for child in children:
            if not isinstance(child, Step):
                raise TypeError(f"parallel {self.name!r} takes steps, not {shown(child)}")
            if child.name in seen:
                raise DuplicateStepNameError(
                    f"parallel {self.name!r} has two steps called {child.name!r}: give each a name of its own",
                    step_name=child.name,
                )
            seen.add(child.name)
        return Step(self.name, Spreads(children, _positive(max_parallel, self.name)), self.modifiers)

    @overload
    def wait_for(
        self, signal: str, timeout: float | timedelta | None = None, prompt: Any = "", payload: None = None,
        early: bool = True,
    ) -> Step[Reply[Any] | ElseT]: ...  # fmt: skip
    @overload
    def wait_for(
        self, signal: str, timeout: float | timedelta | None = None, prompt: Any = "", *, payload: type[T],
        early: bool = True,
    ) -> Step[Reply[T] | ElseT]: ...  # fmt: skip
    @overload
    def wait_for(
        self, signal: str, timeout: float | timedelta | None = None, prompt: Any = "", *, payload: Any,
        early: bool = True,
    ) -> Step[Reply[Any] | ElseT]: ...  # fmt: skip
    def wait_for(
        self,
        signal: str,
        timeout: float | timedelta | None = None,
        prompt: Any = "",
        payload: Any = None,
        early: bool = True,
    ) -> Any:
        """Park the run until `signal` arrives, or `timeout` seconds have passed.

        `prompt` is recorded with the wait, for whoever answers. `payload` is the type of the answer: answers of other
        types are refused, and the run waits on. With `early=False` a signal that was sent before the run waited here
        does not count.
        """
        if not isinstance(signal, str) or not signal:
            raise ValueError(f"step {self.name!r} waits for a signal with a name, not {shown(signal)}")
        seconds = None if timeout is None else as_seconds(timeout, "timeout")
        return Step(self.name, Waits(signal, seconds, None, prompt, payload, early), self.modifiers)

    def sleep(self, duration: float | timedelta) -> Step[Reply[None] | ElseT]:
        """Park the run for `duration`, in seconds if it is a number."""
        return self._timer(Waits(None, as_seconds(duration, "duration")))

    def sleep_until(self, when: datetime) -> Step[Reply[None] | ElseT]:
        """Park the run until `when`, an aware datetime."""
        if not isinstance(when, datetime) or when.tzinfo is None:
            raise ValueError(f"step {self.name!r} sleeps until a datetime with a zone, not {shown(when)}")
        return self._timer(Waits(None, None, when))

    def _timer(self, work: Waits) -> Step[Any]:
        _refuse_limit(self.name, work, self.modifiers)
        return Step(self.name, work, self.modifiers)


class Step(StepDefinition, Generic[OutputT]):
    """A complete step, ready to be yielded, awaited or put into a group."""

    __slots__ = ("work",)
    work: Work

    def __init__(self, name: str, work: Work, modifiers: Modifiers = _PLAIN) -> None:
        _set_name(self, name)
        _set_modifiers(self, modifiers)
        _set_work(self, work)

    def _copy(self, modifiers: Modifiers) -> Step[Any]:
        _refuse_limit(self.name, self.work, modifiers)
        return Step(self.name, self.work, modifiers)

    @property
    def step_type(self) -> StepType:
        """The kind of the step's work."""
        return self.work.step_type

    def __repr__(self) -> str:
        return f"<Step {self.name!r}: {self.work.step_type.value}>"

    def __iter__(self) -> Generator[Step[Any], Any, OutputT]:
        return (yield self)  # type: ignore[no-any-return]

    def __await__(self) -> Generator[Step[Any], Any, OutputT]:
        return (yield self)  # type: ignore[no-any-return]

    def when(self, predicate: Callable[[Any], bool | Awaitable[bool]]) -> Step[OutputT | SkipMarker]:
        """Skip the step unless `predicate(ctx)` is True; an exception skips it too. Asked once, and recorded."""
        return cast("Step[OutputT | SkipMarker]", self._with(when=_callable(predicate, self.name, "when")))

    @overload
    def on_error(self, handler: Callable[[Any, StepResult], Step[T]]) -> Step[OutputT | T]: ...
    @overload
    def on_error(self, handler: Callable[[Any, StepResult], Awaitable[Step[T]]]) -> Step[OutputT | T]: ...
    def on_error(self, handler: Any) -> Any:
        """Let `handler(ctx, failed_result)` give another step after the last attempt.

        The result of that step counts instead.
        """
        return self._with(on_error=_callable(handler, self.name, "on_error"))

    def skip_on_error(self) -> Step[OutputT | SkipMarker]:
        """Count the step as skipped if it fails."""
        return cast("Step[OutputT | SkipMarker]", self._with(skip_on_error=True))

    def as_result(self) -> ResultStep[OutputT | None]:
        """Give the `StepResult` instead of the output, failed or not; a failure does not end the workflow."""
        return cast("ResultStep[OutputT | None]", self._with(as_result=True))

    def to_dict(self) -> dict[str, Any]:
        """Return the definition as JSON: names and numbers, no live objects."""
        document: dict[str, Any] = {
            "name": self.name,
            "step_type": self.work.step_type.value,
            **_work_fields(self.work),
        }
        for name in Modifiers.__struct_fields__:
            value = getattr(self.modifiers, name)
            if value == getattr(_PLAIN, name):
                continue
            if isinstance(value, Retry):
                value = {"max_attempts": value.max_attempts, "backoff": value.backoff}
            document[name] = name_of(value) if callable(value) else value
        return document


_set_work = vars(Step)["work"].__set__

if TYPE_CHECKING:
    # A step with `.as_result()` gives its `StepResult`, whatever its work and its other modifiers are.

    class NamedResult(Named[ElseT]):
        """A step without a kind yet that will give its `StepResult`, whose output is None for a failure."""

        def when(self, predicate: Callable[[Any], bool | Awaitable[bool]]) -> NamedResult[ElseT | SkipMarker]: ...
        @overload
        def on_error(self, handler: Callable[[Any, StepResult], Step[T]]) -> NamedResult[ElseT | T]: ...
        @overload
        def on_error(self, handler: Callable[[Any, StepResult], Awaitable[Step[T]]]) -> NamedResult[ElseT | T]: ...
        def on_error(self, handler: Any) -> Any: ...
        def skip_on_error(self) -> NamedResult[ElseT | SkipMarker]: ...
        @overload  # type: ignore[override]
        def python(self, fn: Callable[[*Ts], Awaitable[R]], args: tuple[*Ts]) -> ResultStep[R | ElseT | None]: ...
        @overload
        def python(self, fn: Callable[[*Ts], R], args: tuple[*Ts]) -> ResultStep[R | ElseT | None]: ...
        @overload
        def python(self, fn: Callable[[], Awaitable[R]]) -> ResultStep[R | ElseT | None]: ...
        @overload
        def python(self, fn: Callable[[], R]) -> ResultStep[R | ElseT | None]: ...
        @overload
        def python(
            self, fn: Callable[..., Awaitable[R]], args: tuple[Any, ...] = (), *, kwargs: Mapping[str, Any] | None
        ) -> ResultStep[R | ElseT | None]: ...
        @overload
        def python(
            self, fn: Callable[..., R], args: tuple[Any, ...] = (), *, kwargs: Mapping[str, Any] | None
        ) -> ResultStep[R | ElseT | None]: ...
        def python(self, fn: Any, args: Any = (), kwargs: Any = None) -> Any: ...
        @overload  # type: ignore[override]
        def map(
            self, fn: Callable[[ItemT], Awaitable[R]], items: Iterable[ItemT], *,
            key: Callable[[ItemT], str] | None = None, max_parallel: int | None = None,
        ) -> ResultStep[list[R] | ElseT | None]: ...  # fmt: skip
        @overload
        def map(
            self, fn: Callable[[ItemT], R], items: Iterable[ItemT], *, key: Callable[[ItemT], str] | None = None,
            max_parallel: int | None = None, executor: ExecutorLike | None = None,
        ) -> ResultStep[list[R] | ElseT | None]: ...  # fmt: skip
        def map(self, fn: Any, items: Any, **options: Any) -> Any: ...
        @overload  # type: ignore[override]
        def subworkflow(
            self, wf: Workflow[..., R], inputs: Mapping[str, Any] | None = None
        ) -> ResultStep[SubWorkflowInvocationResult[R] | ElseT | None]: ...
        @overload
        def subworkflow(
            self, wf: StateVerbs[R], inputs: R
        ) -> ResultStep[SubWorkflowInvocationResult[R] | ElseT | None]: ...
        @overload
        def subworkflow(self, wf: Bound[R]) -> ResultStep[SubWorkflowInvocationResult[R] | ElseT | None]: ...
        def subworkflow(self, wf: Any, inputs: Any = None) -> Any: ...
        def branch(  # type: ignore[override]
            self, *options: tuple[Callable[[Any], bool | Awaitable[bool]], Step[Any]]
        ) -> ResultStep[BranchResult | ElseT | None]: ...
        def parallel(  # type: ignore[override]
            self, steps: Iterable[Step[Any]], max_parallel: int | None = None
        ) -> ResultStep[ParallelResult | ElseT | None]: ...
        def wait_for(  # type: ignore[override]
            self, signal: str, timeout: float | timedelta | None = None, prompt: Any = "", payload: Any = None,
            early: bool = True,
        ) -> ResultStep[Reply[Any] | ElseT | None]: ...  # fmt: skip
        def sleep(  # type: ignore[override]
            self, duration: float | timedelta
        ) -> ResultStep[Reply[None] | ElseT | None]: ...
        def sleep_until(self, when: datetime) -> ResultStep[Reply[None] | ElseT | None]: ...  # type: ignore[override]

    class ResultStep(Step[StepResult[OutputT]]):
        """A step that gives its `StepResult`."""

        def when(  # type: ignore[override]
            self, predicate: Callable[[Any], bool | Awaitable[bool]]
        ) -> ResultStep[OutputT | SkipMarker]: ...
        @overload  # type: ignore[override]
        def on_error(self, handler: Callable[[Any, StepResult], Step[T]]) -> ResultStep[OutputT | T]: ...
        @overload
        def on_error(self, handler: Callable[[Any, StepResult], Awaitable[Step[T]]]) -> ResultStep[OutputT | T]: ...
        def on_error(self, handler: Any) -> Any: ...
        def skip_on_error(self) -> ResultStep[OutputT | SkipMarker]: ...  # type: ignore[override]


_METHODS = {"rollback": "with_rollback"}


def step(name: str) -> Named[Never]:
    """Begin a step; a kind completes it.

    Raises ValueError for a name that is empty or has a `/`, or that no store accepts.

    >>> @workflow("price")
    ... def price(cents: list[int]) -> Steps[int]:
    ...     total = yield from step("add").python(sum, args=(cents,)).retry(3, backoff=0.5).timeout(10)
    ...     return total
    >>> price([1, 2, 3])
    6
    """
    if type(name) is not str or name not in _accepted:
        if type(name) is not str or not name or "/" in name or name.isspace():
            raise ValueError(f"a step needs a name without '/', not {shown(name)}")
        check_id(name, "step name")
        if len(_accepted) < 10_000:
            _accepted.add(name)
    return Named(name, _PLAIN)


_accepted: set[str] = set()


def branch(name: str, *options: tuple[Callable[[Any], bool | Awaitable[bool]], Step[Any]]) -> Step[BranchResult]:
    """Do the step of the first predicate that is True: `step(name).branch(...)`.

    >>> @workflow("size")
    ... def size(n: int) -> Steps[str]:
    ...     large = (lambda ctx: n > 9, step("large").python(str, (n,)))
    ...     small = (lambda ctx: True, step("small").python(repr, (n,)))
    ...     chosen = yield from branch("size", large, small)
    ...     return f"{chosen.selected_step_name}: {chosen.inner_output}"
    >>> size(3)
    'small: 3'
    """
    return step(name).branch(*options)


def parallel(name: str, *steps: Step[Any], max_parallel: int | None = None) -> Step[ParallelResult]:
    """Do the steps at once: `step(name).parallel([...])`.

    >>> @workflow("both")
    ... def both() -> Steps[tuple[int, int]]:
    ...     done = yield from parallel("both", step("a").python(abs, (-1,)), step("b").python(abs, (-2,)))
    ...     return done.get_output("a"), done.get_output("b")
    >>> both()
    (1, 2)
    """
    return step(name).parallel(steps, max_parallel)


def is_async(fn: Callable[..., Any]) -> bool:
    """Return whether a call of `fn` gives a coroutine."""
    if type(fn) is FunctionType:  # the usual case; the general check takes as long as the rest of a step
        return bool(fn.__code__.co_flags & CO_COROUTINE) or hasattr(fn, "_is_coroutine_marker")
    if isinstance(fn, partial):
        return is_async(fn.func)
    if iscoroutinefunction(fn):
        return True
    return not isinstance(fn, type) and iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


def _callable(fn: Any, name: str, where: str) -> Any:
    if not callable(fn):
        raise TypeError(f".{where}() of step {name!r} takes a function, not {shown(fn)}")
    return fn


def _positive(value: int | None, name: str) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"max_parallel of step {name!r} must be a whole number of at least 1, not {shown(value)}")
    return value


def name_of(fn: Any) -> str:
    """Return the name of a function for messages and events."""
    if isinstance(fn, partial):
        return name_of(fn.func)
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)


def _work_fields(work: Work) -> dict[str, Any]:
    if isinstance(work, Calls):
        return {"function": name_of(work.fn)}
    if isinstance(work, Maps):
        return {"function": name_of(work.fn), "items": len(work.items)}
    if isinstance(work, Invokes):
        return {"flow": work.flow.name}
    if isinstance(work, Chooses):
        return {"steps": [option.to_dict() for _, option in work.options]}
    if isinstance(work, Spreads):
        return {"steps": [child.to_dict() for child in work.children]}
    until = None if work.until is None else work.until.isoformat()
    return {"signal": work.signal, "seconds": work.seconds, "until": until}
