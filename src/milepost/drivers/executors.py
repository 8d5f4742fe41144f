"""Calls of user code that an executor performs: on their way there, there, and back.

An executor gets a call as a `Task`. In this process it runs with everything that a call in one of our threads has: the
whole context and the caller's contextvars. If it is pickled on its way, only the ids of the context go with it. User
code's errors come back as values, so that an error of the future itself is always the executor's.

A call to another process, and its result, are bytes to the executor. Otherwise an object that can be pickled but not
unpickled would break its pool, and with it all calls in the pool. An object that can't be unpickled fails its own call.

No thread waits for a call that is elsewhere: the future's callback settles the promise.
"""

from __future__ import annotations

import contextvars
import copy
import itertools
import pickle
import sys
import traceback
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

from milepost.drivers.pools import Taken, is_broken, pools
from milepost.drivers.threads import Pending, threads
from milepost.errors import MilepostError
from milepost.executor.context import Context, ContextElsewhere, current_context, run_within
from milepost.executor.effects import Call
from milepost.model.failure import describe, message_of, type_name
from milepost.model.hooks import surround
from milepost.model.process import this_process

__all__ = ["ExecutorCall", "Task"]


class Task:
    """One call of user code, in the form that an executor gets."""

    __slots__ = ("__weakref__", "_args", "_context", "_fn", "_number", "_variables", "pack")

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        context: Context[Any] | ContextElsewhere,
        variables: contextvars.Context | None = None,
    ) -> None:
        self._fn = fn
        self._args = args
        self._context = context
        self._variables = variables
        """The contextvars in which it runs, in the process that made it."""
        self._number = next(_numbers)
        self.pack: Callable[[Any], Any] | None = None
        """The pickler of its executor. None: objects that can't be unpickled do the executor no harm."""

    @property
    def __name__(self) -> str:
        """The name of the function. Executors with a dashboard show it as the name of the task."""
        return _name_of(self._fn)

    def __call__(self) -> Any:
        """Call the function and return its value, or its error as `Raised`. In another process both come as `Sent`."""
        if self._variables is not None:
            return self._variables.run(self._perform)
        outcome = self._perform()
        return _sent_error(outcome.error) if isinstance(outcome, Raised) else _sent(outcome, self._fn)

    def _perform(self) -> Any:
        try:
            return run_within(self._context, self._fn, self._args)
        except BaseException as exc:
            return Raised(exc)

    def __reduce__(self) -> Any:
        if self._variables is not None:
            _on_their_way[self._number] = self
        what = (self._fn, self._args, self._context)
        if self.pack is not None:
            return _arrive_packed, (this_process().key, self._number, self.__name__, bytes(self.pack(what)))
        return _arrive, (this_process().key, self._number, *what)


_numbers = itertools.count(1)
_on_their_way: weakref.WeakValueDictionary[int, Task] = weakref.WeakValueDictionary()
"""Tasks of this process that were pickled. One that comes back to this process is found here."""


def _arrive(
    process: str, number: int, fn: Callable[..., Any], args: tuple[Any, ...], context: ContextElsewhere
) -> Task:
    task = _on_their_way.get(number) if process == this_process().key else None
    return Task(fn, args, context) if task is None else task


def _arrive_packed(process: str, number: int, name: str, data: bytes) -> Task | _Packed:
    task = _on_their_way.get(number) if process == this_process().key else None
    return _Packed(name, data) if task is None else task


class _Packed:
    """A task that has arrived in another process. It is unpickled only where an error can be reported."""

    __slots__ = ("__name__", "_data")

    def __init__(self, name: str, data: bytes) -> None:
        self.__name__ = name
        self._data = data

    def __call__(self) -> Any:
        try:
            task = Task(*pickle.loads(self._data))  # noqa: S301  # from the process that has started this one
        except BaseException as exc:
            return _sent_error(_unsendable(self.__name__, exc))
        return task()


class Raised:
    """An error that user code raised. In its own process the error stays as it is."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return Sent, _sent_error(self.error)


class Sent(NamedTuple):
    """The result of a call in another process, on its way back."""

    data: bytes
    """The value or the error, pickled; empty if it can't be pickled."""
    error: str = ""
    """The type and message of an error; empty for a value."""
    traceback: str = ""


def _sent(value: Any, fn: Callable[..., Any]) -> Sent:
    try:
        return Sent(_pickled(value))
    except Exception as exc:
        error = _unsendable(fn, exc)
        error.__cause__ = exc
        return _sent_error(error)


def _sent_error(error: BaseException) -> Sent:
    data = b""
    with suppress(Exception):
        try:
            data = _pickled(error)
        except Exception:
            data = _pickled(_with_what_can_go(error))
    text = "".join(traceback.format_exception(error))
    return Sent(data, f"{type_name(error)}: {message_of(error)}", text)


def _with_what_can_go(error: BaseException) -> BaseException:
    """Return an error of this library without the attributes that can't be sent, a state with a client in it say."""
    if not isinstance(error, MilepostError):
        return error
    kept = copy.copy(error)
    for name, value in vars(error).items():
        try:
            _pickled(value)
        except Exception:
            delattr(kept, name)
    return kept


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=5)
    except Exception:
        # In such a process the executor uses cloudpickle, which can send more than pickle.
        if "cloudpickle" not in sys.modules:
            raise
    data: bytes = sys.modules["cloudpickle"].dumps(value, protocol=5)
    return data


def _opened(sent: Sent, fn: Callable[..., Any]) -> tuple[Any, BaseException | None]:
    """Return the value and the error of a call, unpickled. If that fails, the error says what is known."""
    made: Any = None
    problem: BaseException | None = None
    try:
        made = pickle.loads(sent.data)  # noqa: S301  # from a process that this one has handed its code to
    except BaseException as exc:
        problem = exc
    if sent.error:
        error = made if isinstance(made, BaseException) else RuntimeError(sent.error)
        error.__cause__ = TracebackThere(sent.traceback)
        return None, error
    if problem is not None:
        error = _unsendable(fn, problem)
        error.__cause__ = problem
        return None, error
    return made, None


def _unsendable(fn: Callable[..., Any] | str, error: BaseException) -> TypeError:
    if isinstance(fn, str) or _is_found(fn):
        text = f"what {_name_of(fn)!r} is given or gives cannot be sent to another process: let it be data"
    else:
        text = (
            f"{_name_of(fn)!r} cannot be sent to another process, which finds it by its name: define it at module level"
        )
    return TypeError(f"{text} ({describe(error)})")


class TracebackThere(Exception):
    """The traceback of an error in the process where it was raised, as text. It is the error's cause here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class ExecutorCall(Pending):
    """The outcome of a call that an executor performs; `then` is called once it is there, in any thread."""

    __slots__ = ("_around", "_call", "_is_unwanted", "_taken", "_task", "_then", "_variables")

    def __init__(self, call: Call, around: Sequence[Any], then: Callable[[Pending], None] | None) -> None:
        super().__init__()
        assert call.context is not None
        self._call = call
        self._then = then
        self._variables = contextvars.copy_context()
        self._around = surround(around, call.context.run_id) if around else None
        self._task: Task | None = Task(call.fn, call.args, call.context, self._variables)
        self._taken: Taken | None = None
        self._is_unwanted = False

    def begin(self) -> None:
        """Hand the call in, once."""
        # In a thread, because a factory may take its time, and so may sending the arguments.
        threads.submit(self._begin)

    def recall(self) -> bool:
        """Take the call back: True if it has not begun and never will."""
        self._is_unwanted = True
        taken = self._taken
        return taken is not None and taken.tells and taken.future.cancel()

    def abandon(self) -> None:
        """Keep the call from beginning, as far as its executor can. Nobody asks for the outcome any more."""
        self._is_unwanted = True
        if self._taken is not None:
            self._taken.future.cancel()

    def _begin(self) -> None:
        try:
            self._variables.run(self._enter)
            if self._is_unwanted:
                raise RuntimeError("it was abandoned before it began")
            assert self._call.executor is not None
            assert self._task is not None
            self._taken = pools.submit(self._call.executor, self._task)
        except BaseException as exc:
            self._end(None, self._read(exc))
            return
        if self._is_unwanted:
            self._taken.future.cancel()
        self._taken.future.add_done_callback(self._came_back)

    def _enter(self) -> None:
        current_context.set(self._call.context)  # type: ignore[arg-type]
        if self._around is not None:
            self._around.__enter__()

    def _came_back(self, future: Future[Any]) -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = future.result()
        except BaseException as exc:
            error = self._read(exc)
        if isinstance(value, Sent):
            value, error = _opened(value, self._call.fn)
        elif isinstance(value, Raised):
            value, error = None, value.error
        self._end(value, error)

    def _end(self, value: Any, error: BaseException | None) -> None:
        if self._around is not None:
            try:
                self._variables.run(self._around.__exit__, type(error) if error else None, error, None)
            except BaseException as exc:
                error = exc
        self.value, self.error = value, error
        self._task = None
        self.settle()
        if self._then is not None:
            self._then(self)

    def _read(self, error: BaseException) -> BaseException:
        """Translate an executor's error into the error of the call."""
        assert self._call.executor is not None
        fn = self._call.fn
        if is_broken(error):
            if self._taken is not None:
                pools.give_up(self._call.executor, self._taken.number)
            return error
        told: BaseException
        if _is_about_pickling(error):
            told = _unsendable(fn, error)
        elif not isinstance(error, Exception) or type(error).__name__.endswith("CancelledError"):
            who = "the executor" if self._taken is None else self._taken.kind
            told = RuntimeError(f"{who} dropped the call of {_name_of(fn)!r}: {describe(error)}")
        else:
            return error
        told.__cause__ = error
        return told


def _is_about_pickling(error: BaseException) -> bool:
    text = str(error).lower()
    return "pickl" in type(error).__name__.lower() or "pickl" in text or "serializ" in text or "local object" in text


def _name_of(fn: Callable[..., Any] | str) -> str:
    if isinstance(fn, str):
        return fn
    while isinstance(fn, partial):
        fn = fn.func
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)


def _is_found(fn: Any) -> bool:
    """Return whether a function or class can be found by its name. True for anything else: it may work."""
    while isinstance(fn, partial):
        fn = fn.func
    if not isinstance(fn, (FunctionType, type)):
        return True
    found: Any = sys.modules.get(fn.__module__)
    for name in fn.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is fn
