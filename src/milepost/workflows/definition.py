"""Workflows: steps in plain Python, written as a generator or an `async def`, run as a `Workflow`.

The code between steps is the author's and runs again on a resume; the result of a recorded step comes from the record.
This module runs no step: the verbs do, over `milepost.workflows.step`.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import re
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    NotRequired,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    get_args,
    get_origin,
    overload,
)

import msgspec

from milepost.codec import Codec
from milepost.codec.functions import FunctionCodecs, classes, hints_of, lenient
from milepost.errors import (
    DeserializeStateError,
    MilepostError,
    OptionError,
    SerializeStateError,
    StateTypeError,
    shown,
)
from milepost.model.reports import RunResult
from milepost.model.results import (
    BranchResult,
    ParallelResult,
    Reply,
    SkipMarker,
    StepResult,
    SubWorkflowInvocationResult,
    WorkflowResult,
)
from milepost.store import check_id
from milepost.verbs import Bound, InputVerbs
from milepost.workflows.context import WorkflowContext
from milepost.workflows.matching import hash_of

HELD = (
    TypeError,
    AttributeError,
    NameError,
    ImportError,
    LookupError,
    AssertionError,
    NotImplementedError,
)
"""The exceptions that are bugs where a workflow's own code raises them between its steps."""

if TYPE_CHECKING:
    from milepost.executor.flow import StepFlow
    from milepost.executor.run import Run
    from milepost.options import Options
    from milepost.store import Store

P = ParamSpec("P")
InputsP = ParamSpec("InputsP")
R = TypeVar("R")


class _TakesContext(Protocol[InputsP]):
    """For type checkers: a workflow whose code takes its context first. The context is no input."""

    @property
    def fn(self) -> Callable[Concatenate[WorkflowContext[Any], InputsP], Any]: ...


@dataclass(frozen=True, slots=True)
class Parameter:
    """An input of a workflow. `default` is `inspect.Parameter.empty` if it has none."""

    name: str
    annotation: Any
    default: Any
    kind: str


class Workflow(InputVerbs[R], Generic[P, R]):
    """A workflow that can run. `@workflow` makes it; it never changes, and may have many runs at once.

    A call runs it without a store. Verbs take inputs by position, by name, as `inputs={...}` if a name is also that of
    an option, or bound: `wf.bind(...)`. P are the parameters of its function, with the context; R is the type of its
    output.

    >>> greeting.name, [parameter.name for parameter in greeting.parameters], greeting.bind("Ada").state
    ('greeting', ['name'], {'name': 'Ada'})
    """

    def __init__(self, definition: WorkflowDefinition) -> None:
        self._definition = definition
        self.name = definition.name
        self.description = definition.description
        self.version = definition.version
        self.parameters = definition.parameters
        self.__doc__ = definition.description
        self.__name__ = definition.name

    @property
    def _flow(self) -> StepFlow:
        return self._definition

    @property
    def fn(self) -> Callable[P, Any]:
        """The function that the workflow was made from."""
        return self._definition.fn

    def __repr__(self) -> str:
        return f"<Workflow {self.name!r}: inputs {', '.join(p.name for p in self.parameters) or 'none'}>"

    def _inputs_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return self._definition.inputs_of(args, kwargs)

    @overload
    def bind(
        self: _TakesContext[InputsP], *args: InputsP.args, **kwargs: InputsP.kwargs
    ) -> Bound[R, WorkflowResult[R]]: ...
    @overload
    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound[R, WorkflowResult[R]]: ...
    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """Bind inputs to this workflow, for the verbs of an engine and for `.subworkflow`."""
        return Bound(self, self._inputs_of(args, kwargs))

    @overload
    def __call__(self: _TakesContext[InputsP], *args: InputsP.args, **kwargs: InputsP.kwargs) -> R: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the workflow without a store and return its output or, for an `async def`, a coroutine that gives it."""
        inputs = self._inputs_of(args, kwargs)
        job = self._job(None, None, {})
        return job.ado(inputs) if self._definition.is_async else job.do(inputs)


class WorkflowDefinition:
    """A workflow as the core runs it: see `milepost.executor.flow.StepFlow`. It never changes."""

    front: Literal["workflow"] = "workflow"
    is_named = True
    entry = ""
    async_names: tuple[str, ...] = ()

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        description: str,
        version: int,
        types: Sequence[type],
        hold_on: tuple[type[Exception], ...] = HELD,
    ) -> None:
        self.fn = fn
        self.hold_on = hold_on
        self.name = name
        self.description = description or inspect.getdoc(fn) or ""
        self.version = version
        self.types = tuple(types)
        self.is_async = inspect.iscoroutinefunction(fn)
        self._signature, self._takes_context = _signature_of(fn, name)
        hints = hints_of(fn, self.types)
        self.parameters = tuple(
            Parameter(p.name, hints.get(p.name, p.annotation), p.default, p.kind.description)
            for p in self._signature.parameters.values()
        )
        declared = {p.name: lenient(hints.get(p.name, Any)) for p in self.parameters}
        self.known_types: tuple[Any, ...] = classes((*self.types, *declared.values(), *_RESULTS))
        # A run that began before a parameter with a default existed goes on with that default.
        optional = {name: NotRequired[hint] if name in self.defaults() else hint for name, hint in declared.items()}
        inputs: Any = TypedDict("Inputs", optional)  # type: ignore[misc]
        # The module in which names in the annotations are looked up.
        inputs.__module__ = getattr(inspect.unwrap(fn), "__module__", None) or __name__
        self.codec: Codec[Any] = _Inputs(inputs, types=self.types)
        returned = _output_hint(hints.get("return", Any), self.is_async)
        self.output_codec: Codec[Any] = Codec(returned, types=self.known_types)
        self._functions = FunctionCodecs(self.known_types, self.types)

    def new_run(self, store: Store | None, run_id: str, options: Options, *, is_listening: bool) -> Run:
        """Make a run of this workflow."""
        from milepost.workflows.run import StepRun  # not needed to build a workflow

        return StepRun(self, store, run_id, options, is_listening=is_listening)

    @property
    def shape(self) -> dict[str, Any]:
        """The names of the inputs. A resume compares them with the recorded ones, beside the steps."""
        return {"parameters": [p.name for p in self.parameters]}

    @property
    def fingerprint(self) -> str:
        """A digest (64 hex digits) of the shape and the version."""
        return hashlib.sha256(msgspec.json.encode([self.shape, self.version])).hexdigest()

    def differences(self, recorded: Mapping[str, Any]) -> tuple[str, ...]:
        """Describe how this workflow differs from a recorded `shape`, in one sentence for each difference."""
        before = list(recorded.get("parameters") or [])
        now = [p.name for p in self.parameters]
        changes = [f"input {name!r} is gone" for name in before if name not in now]
        changes += [f"input {name!r} is new" for name in now if name not in before]
        return tuple(changes) or ("its version is another one",)

    def inputs_hash(self, inputs: Mapping[str, Any]) -> str:
        """Return a digest (64 hex digits) of the inputs, which is the same for equal inputs in every process."""
        return hash_of(inputs, self.known_types)[0]

    def digests(self, inputs: Mapping[str, Any]) -> dict[str, str]:
        """Return a digest for each input."""
        return hash_of(inputs, self.known_types)[1]

    def defaults(self) -> dict[str, Any]:
        """Return the inputs that have a default, each with its default."""
        return {p.name: p.default for p in self.parameters if p.default is not inspect.Parameter.empty}

    def input_of(self, data: bytes) -> dict[str, Any]:
        """Decode inputs, and complete them with defaults."""
        return self.completed(self.codec.decode(data, root="input"))

    def completed(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Complete recorded inputs with the defaults of parameters that are new.

        Raises `DeserializeStateError` if such a default is not of its declared type.
        """
        completed = {**self.defaults(), **inputs}
        if len(completed) == len(inputs):
            return completed
        try:
            # The code gets a copy of the defaults, as of all inputs, since it may change its inputs.
            return dict(self.codec.decode(self.codec.encode(completed, root="input"), root="input"))
        except (StateTypeError, SerializeStateError) as exc:
            raise DeserializeStateError(
                f"{exc.args[0]}: it is the default of a parameter that the record has no input for", path=exc.path
            ) from exc

    def begin(self, context: WorkflowContext[Any], inputs: Mapping[str, Any]) -> Any:
        """Call the workflow's function and return its code, ready to be played: a generator or a coroutine."""
        bound = inspect.BoundArguments(self._signature, dict(inputs))
        first = (context,) if self._takes_context else ()
        return self.fn(*first, *bound.args, **bound.kwargs)

    def codec_of(self, fn: Callable[..., Any]) -> Codec[Any]:
        """Return the codec of a step function's output."""
        return self._functions.of(fn).returned

    def items_codec_of(self, fn: Callable[..., Any]) -> Codec[Any]:
        """Return the codec of the items that a function is mapped over."""
        return self._functions.of(fn).items

    def argument_types_of(self, fn: Callable[..., Any]) -> tuple[Any, ...]:
        """Return the classes that the arguments of a step's function may have."""
        return self._functions.of(fn).types

    def inputs_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs by name, defaults included. Raises TypeError for missing and unknown inputs."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as exc:
            takes = ", ".join(p.name for p in self.parameters) or "none"
            raise TypeError(f"workflow {self.name!r}: {exc}; its inputs are: {takes}") from None
        bound.apply_defaults()
        return dict(bound.arguments)


_RESULTS = (
    SkipMarker,
    StepResult,
    ParallelResult,
    BranchResult,
    Reply,
    SubWorkflowInvocationResult,
    WorkflowResult,
    RunResult,
)
"""The classes of results that steps give, and that functions and workflows may return or pass on."""


if TYPE_CHECKING:

    class AsyncWorkflow(Workflow[P, R]):
        """A workflow made from an `async def`: a call gives a coroutine."""

        @overload  # type: ignore[override]
        def __call__(
            self: _TakesContext[InputsP], *args: InputsP.args, **kwargs: InputsP.kwargs
        ) -> Coroutine[Any, Any, R]: ...
        @overload
        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...
        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


class _Inputs(Codec[Any]):
    """A codec of inputs. Its errors and problems name an input by its own name: `input.order`."""

    def __init__(self, type_: Any, **options: Any) -> None:
        super().__init__(type_, **options)
        self.problems = tuple((_named(path), text) for path, text in self.problems)
        self.problem_types = {_named(path): kind for path, kind in self.problem_types.items()}

    def encode(self, value: Any, *, root: str = "input") -> bytes:
        try:
            return super().encode(value, root="input")
        except (SerializeStateError, StateTypeError) as exc:
            _call_by_name(exc)
            raise

    def check(self, value: Any) -> None:
        """Raise `StateTypeError` for an input of another type than the declared one; what has no JSON form passes."""
        with contextlib.suppress(SerializeStateError):
            self.encode(value)

    def decode(self, data: bytes, *, root: str = "input") -> Any:
        try:
            return super().decode(data, root="input")
        except DeserializeStateError as exc:
            _call_by_name(exc)
            raise


def _call_by_name(exc: Any) -> None:
    path = exc.path or ""
    exc.path = _named(path)
    exc.args = (str(exc.args[0]).replace(path, exc.path), *exc.args[1:])


def _named(path: str) -> str:
    return re.sub(r'^(?:input|state)\["(\w+)"\]', r"input.\1", path)


class _Decorator:
    """The decorator that `@workflow(...)` gives. Its overloads tell type checkers which workflow a function becomes."""

    def __init__(
        self,
        name: str,
        description: str,
        version: int,
        types: Sequence[type],
        hold_on: tuple[type[Exception], ...],
    ) -> None:
        self._made = (name, description, version, types, hold_on)

    # The context stays among the parameters here: an overload on it would leave mypy undecided, and every workflow with
    # an Any among its parameters untyped.
    @overload
    def __call__(self, fn: Callable[P, Generator[Any, Any, R]]) -> Workflow[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]]) -> AsyncWorkflow[P, R]: ...
    def __call__(self, fn: Callable[..., Any]) -> Any:
        name = self._made[0]
        if not (inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn)):
            what = "an async generator" if inspect.isasyncgenfunction(fn) else "a function without a step"
            raise TypeError(
                f"workflow {name!r} is {what}: write a generator that yields steps, or an async def that awaits them"
            )
        return Workflow(WorkflowDefinition(fn, *self._made))


def workflow(
    name: str,
    description: str = "",
    *,
    version: int = 1,
    types: Sequence[type] = (),
    hold_on: tuple[type[Exception], ...] = HELD,
) -> _Decorator:
    """Make a workflow from a generator that yields steps, or from an `async def` that awaits them.

    `name` is the flow's name in a store. `version` is recorded when a run begins and stays `ctx.version` for as long as
    the run lives, so that code can branch on it. `types` are classes that outputs may have beside those that functions
    declare. An exception of a class in `hold_on` that the code raises between its steps is a bug: it holds the run, which
    is `blocked` and goes on where it was once the code is mended, instead of failing it; () holds nothing. Raises
    ValueError for an empty name, or a version that is no whole number of at least 1; `OptionError` for a name that no
    store accepts; TypeError for another kind of function.

    >>> @workflow("greeting")
    ... def greeting(name: str) -> Steps[str]:
    ...     text = yield from step("greet").python("Hello, {}".format, args=(name,))
    ...     return text + "!"
    >>> greeting("Ada"), greeting.run("Ada", store=store, run_id="r-1")
    ('Hello, Ada!', 'Hello, Ada!')
    """
    if type(name) is not str or not name.strip():
        raise ValueError(f"a workflow needs a name, not {shown(name)}: @workflow('orders')")
    try:
        check_id(name, "name of a workflow")
    except MilepostError as exc:
        raise OptionError(str(exc), option="name") from exc
    if type(version) is not int or version < 1:
        raise ValueError(f"version of workflow {name!r} must be a whole number of at least 1, not {shown(version)}")
    if type(hold_on) is not tuple or not all(
        isinstance(kind, type) and issubclass(kind, Exception) for kind in hold_on
    ):
        raise TypeError(f"hold_on of workflow {name!r} must be a tuple of exception classes, not {shown(hold_on)}")
    return _Decorator(name, description, version, types, hold_on)


def _signature_of(fn: Callable[..., Any], name: str) -> tuple[inspect.Signature, bool]:
    """Return the signature of the inputs, and whether the context comes before them."""
    signature = inspect.signature(fn)
    hints = hints_of(fn, ())
    found = list(signature.parameters.values())
    contexts = [p.name for p in found if _is_context(hints.get(p.name, p.annotation))]
    takes_context = (
        bool(found) and contexts[:1] == [found[0].name] and found[0].kind is not inspect.Parameter.KEYWORD_ONLY
    )
    if len(contexts) > takes_context:
        raise TypeError(f"workflow {name!r}: the WorkflowContext must be the first parameter, not {contexts[-1]!r}")
    inputs = found[1:] if takes_context else found
    for parameter in inputs:
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise TypeError(f"workflow {name!r}: each input needs a name of its own, {str(parameter)!r} has none")
    return signature.replace(parameters=inputs, return_annotation=inspect.Signature.empty), takes_context


def _is_context(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return annotation.partition("[")[0].rpartition(".")[2] == "WorkflowContext"
    return (get_origin(annotation) or annotation) is WorkflowContext


def _output_hint(hint: Any, is_async: bool) -> Any:
    """Return the type of a workflow's output, as the return annotation of its function declares it."""
    if is_async:
        return lenient(hint)
    if get_origin(hint) is Generator or hint is Generator:
        args = get_args(hint)
        return lenient(args[2]) if len(args) == 3 else Any
    return Any
