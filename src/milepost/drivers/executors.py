"""Calls of user code that an executor performs, and the pools that factories of executors have made.

An executor gets a call as a `Task`. In this process it runs with everything that a call in one of our threads has: the
whole context and the caller's contextvars. If the executor pickles it, only the ids of the context go with it. User
code's errors come back as values, so that an error of the future itself is always the executor's.

A call to another process, and its result, are bytes to the executor. Otherwise an object that can be pickled but not
unpickled would break its pool, and with it all calls in the pool. An object that can't be unpickled fails its own call.

No thread waits for a call that is elsewhere: the future's callback settles the promise. No executor is treated in a
way of its own, and no error is known by its text.
"""

from __future__ import annotations

import atexit
import contextvars
import copy
import logging
import pickle
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import suppress
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

from milepost.drivers.threads import Pending, Threads, threads
from milepost.errors import MilepostError, shown
from milepost.executor.context import Context, current_context, run_within
from milepost.executor.effects import Call
from milepost.model.events import surround
from milepost.model.executors import ExecutorLike
from milepost.model.failure import describe, message_of, type_name
from milepost.model.ids import in_forked_child

logger = logging.getLogger("milepost")


# -- a call on its way, and back ---------------------------------------------------------------------------


class Task:
    """One call of user code, in the form that an executor gets. In another process it arrives as a `SentTask`."""

    __slots__ = ("_args", "_context", "_fn", "_variables", "problem")

    def __init__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], context: Context[Any], variables: contextvars.Context
    ) -> None:
        self._fn = fn
        self._args = args
        self._context = context
        self._variables = variables
        """The contextvars in which it runs in this process."""
        self.problem: Exception | None = None
        """The error of pickling the call. Executors with a better pickler than the standard one may send it anyway."""

    @property
    def __name__(self) -> str:
        """The name of the function. Executors with a dashboard show it as the name of the task."""
        return _name_of(self._fn)

    def __call__(self) -> Any:
        """Call the function in this process and return its value, or its error as `Raised`."""
        try:
            return self._variables.run(run_within, self._context, self._fn, self._args)
        except BaseException as exc:
            return Raised(exc)

    def __reduce__(self) -> Any:
        call = (self._fn, self._args, self._context)
        try:
            data = pickle.dumps(call, protocol=5)
        except Exception as exc:
            self.problem = exc
            return SentTask, (call, self.__name__)
        # The other process has another `__main__`. The picklers of loky, Dask and Ray send what is defined there whole.
        return SentTask, (call if b"__main__" in data else data, self.__name__)


class SentTask:
    """A call that has arrived in another process. It is unpickled only where an error can be reported."""

    __slots__ = ("_call", "_name")

    def __init__(self, call: bytes | tuple[Any, ...], name: str) -> None:
        self._call = call
        self._name = name

    def __call__(self) -> Sent:
        """Call the function and return its value, or its error, pickled."""
        call: Any = self._call
        try:
            if isinstance(call, bytes):
                call = pickle.loads(call)  # noqa: S301  # from the process that has started this one
        except BaseException as exc:
            return _sent_error(_unsendable(self._name, exc))
        fn, args, context = call
        try:
            value = run_within(context, fn, args)
        except BaseException as exc:
            return _sent_error(exc)
        try:
            return Sent(_pickled(value))
        except Exception as exc:
            return _sent_error(_unsendable(fn, exc))


class Raised(NamedTuple):
    """An error that user code raised in this process."""

    error: BaseException


class Sent(NamedTuple):
    """The result of a call in another process, on its way back."""

    data: bytes
    """The value or the error, pickled; empty if it can't be pickled."""
    error: str = ""
    """The type and message of an error; empty for a value."""
    traceback: str = ""


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
    value: Any = None
    problem: BaseException | None = None
    try:
        value = pickle.loads(sent.data)  # noqa: S301  # from a process that this one has handed its code to
    except BaseException as exc:
        problem = exc
    if sent.error:
        error = value if isinstance(value, BaseException) else RuntimeError(sent.error)
        error.__cause__ = TracebackThere(sent.traceback)
        return None, error
    return (value, None) if problem is None else (None, _unsendable(fn, problem))


class TracebackThere(Exception):
    """The traceback of an error in the process where it was raised, as text. It is the error's cause here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def _unsendable(fn: Callable[..., Any] | str, problem: BaseException) -> TypeError:
    """Return the error of a call that can't be sent, by its function or that one's name."""
    if isinstance(fn, str) or _is_found(fn):
        text = f"what {_name_of(fn)!r} is given or gives cannot be sent to another process: let it be data"
    else:
        text = (
            f"{_name_of(fn)!r} cannot be sent to another process, which finds it by its name: define it at module level"
        )
    error = TypeError(f"{text} ({describe(problem)})")
    error.__cause__ = problem
    return error


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


# -- the outcome of a call ---------------------------------------------------------------------------------


class ExecutorCall(Pending):
    """The outcome of a call that an executor performs; `then` is called once it is there, in any thread."""

    __slots__ = ("_around", "_call", "_is_unwanted", "_submitted", "_task", "_then", "_variables")

    def __init__(self, call: Call, around: Sequence[Any], then: Callable[[Pending], None] | None) -> None:
        super().__init__()
        assert call.context is not None
        self._call = call
        self._then = then
        self._variables = contextvars.copy_context()
        self._around = surround(around, call.context.run_id) if around else None
        self._task: Task | None = Task(call.fn, call.args, call.context, self._variables)
        self._submitted: Submitted | None = None
        self._is_unwanted = False

    def begin(self) -> None:
        """Hand the call in, once."""
        # In a thread, because a factory may take its time, and so may sending the arguments.
        threads.submit(self._begin)

    def recall(self) -> bool:
        """Take the call back: True if it has not begun and never will."""
        self._is_unwanted = True
        submitted = self._submitted
        return submitted is not None and submitted.is_exact and submitted.future.cancel()

    def abandon(self) -> None:
        """Keep the call from beginning, as far as its executor can. Nobody asks for the outcome any more."""
        self._is_unwanted = True
        if self._submitted is not None:
            self._submitted.future.cancel()

    def _begin(self) -> None:
        assert self._call.executor is not None
        assert self._task is not None
        try:
            self._variables.run(self._enter)
            if self._is_unwanted:
                raise RuntimeError("it was abandoned before it began")
            self._submitted = pools.submit(self._call.executor, self._task)
        except BaseException as exc:
            self._end(None, self._translated(exc))
            return
        if self._is_unwanted:
            self._submitted.future.cancel()
        self._submitted.future.add_done_callback(self._came_back)

    def _enter(self) -> None:
        current_context.set(self._call.context)  # type: ignore[arg-type]
        if self._around is not None:
            self._around.__enter__()

    def _came_back(self, future: Future[Any]) -> None:
        try:
            value: Any = future.result()
            error: BaseException | None = None
        except BaseException as exc:
            value, error = None, self._translated(exc)
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

    def _translated(self, error: BaseException) -> BaseException:
        """Translate an executor's error into the error of the call."""
        submitted, fn = self._submitted, self._call.fn
        if isinstance(error, BrokenExecutor):
            if submitted is not None and self._call.executor is not None:
                pools.give_up(self._call.executor, submitted.number)
            return error
        if self._task is not None and self._task.problem is not None:
            return _unsendable(fn, self._task.problem)
        is_cancelled = submitted is not None and submitted.future.cancelled()
        if isinstance(error, Exception) and not is_cancelled:
            return error
        who = "the executor" if submitted is None else submitted.kind
        dropped = RuntimeError(f"{who} dropped the call of {_name_of(fn)!r}: {describe(error)}")
        dropped.__cause__ = error
        return dropped


# -- the pools of this process -----------------------------------------------------------------------------


class Submitted(NamedTuple):
    """A call that an executor has accepted.

    It does not hold the pool, which must not be freed in the thread that settles its futures.
    """

    future: Future[Any]
    number: int
    """The number of the pool among those that the factory made."""
    kind: str
    """The name of the executor's class."""
    is_exact: bool
    """True if a future that could be cancelled has surely not begun. Executors in general do not guarantee that."""


def _submit(pool: Executor, number: int, task: Callable[[], Any]) -> Submitted:
    is_exact = isinstance(pool, (futures.ThreadPoolExecutor, futures.ProcessPoolExecutor))
    return Submitted(pool.submit(task), number, type(pool).__name__, is_exact)


class _Slot:
    """The pool of one factory, while there is one."""

    __slots__ = ("factory", "making", "number", "pool", "users")

    def __init__(self, factory: Callable[[], Executor]) -> None:
        self.factory = factory
        self.making = threading.Lock()
        """A lock that is held while the factory is called, which may take seconds; nobody else waits for it."""
        self.pool: Executor | None = None
        self.number = 0
        """The number of pools that the factory has made."""
        self.users = 0
        """The number of engines that bind the factory."""


class Pools:
    """The pools of this process: one for each factory that is given as `executor=`, shared by all runs.

    A factory is called when its pool is first needed, and again once that pool has broken. Its pools are shut down when
    the last engine that binds the factory is closed, and when the interpreter ends. An executor that was given as such
    is its owner's, and never touched.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: dict[Any, _Slot] = {}
        self._pools: weakref.WeakSet[Executor] = weakref.WeakSet()
        self._leaving: weakref.WeakSet[Any] = weakref.WeakSet()
        """Processes of pools that were shut down while a call may still have run in them."""
        self._makers = Threads(lasting=True)
        """The threads in which factories are called.

        They last, because the system may end processes with the thread that started them. A local cluster of Ray
        arranges to be ended so.
        """

    def submit(self, executor: ExecutorLike, task: Callable[[], Any]) -> Submitted:
        """Hand `task` to the executor.

        A factory's pool that refuses the task, because it has broken or was shut down, is replaced, and the new one is
        asked: nothing has begun. Raises the errors of making the pool and of handing over, and TypeError if a factory
        gives no executor.
        """
        if isinstance(executor, Executor):
            return _submit(executor, 0, task)
        slot = self._slot(executor)
        pool, number = self._pool_of(slot)
        try:
            return _submit(pool, number, task)
        except RuntimeError:
            self.give_up(executor, number)
        return _submit(*self._pool_of(slot), task)

    def give_up(self, executor: ExecutorLike, number: int) -> None:
        """Stop using that pool of a factory. Waits for nothing: the thread that notices the break may call it."""
        if isinstance(executor, Executor):
            return
        slot = self._slot(executor)
        pool = slot.pool
        if pool is not None and slot.number == number:
            slot.pool = None
            # In another thread, because this one may hold the pool's own lock.
            threads.submit(partial(self._shut, pool))

    def bind(self, executor: ExecutorLike) -> None:
        """Note that one more engine binds this executor."""
        if not isinstance(executor, Executor):
            slot = self._slot(executor)
            with self._lock:
                slot.users += 1

    def unbind(self, executor: ExecutorLike) -> None:
        """Note that an engine which bound this executor is closed. With the last one a factory's pool is shut down."""
        if isinstance(executor, Executor):
            return
        slot = self._slot(executor)
        with self._lock:
            slot.users -= 1
            if slot.users > 0:
                return
            self._slots.pop(_key(executor), None)
        pool, slot.pool = slot.pool, None
        if pool is not None:
            self._shut(pool)

    def close(self) -> None:
        """Shut all pools down and end their processes; calls that still run there are not waited for."""
        pools = [*self._pools]  # a slot is all that keeps its pool alive
        with self._lock:
            self._slots.clear()
        for pool in pools:
            self._shut(pool)
        for process in [*self._leaving]:
            with suppress(Exception):  # it has ended by itself
                process.kill()

    def _slot(self, factory: Callable[[], Executor]) -> _Slot:
        with self._lock:
            return self._slots.setdefault(_key(factory), _Slot(factory))

    def _pool_of(self, slot: _Slot) -> tuple[Executor, int]:
        with slot.making:
            pool = slot.pool
            if pool is None:
                pool = self._make(slot.factory)
                slot.number += 1
                slot.pool = pool
            return pool, slot.number

    def _make(self, factory: Callable[[], Executor]) -> Executor:
        making = self._makers.submit(factory)
        making.done.wait()
        pool = making.get()
        if not isinstance(pool, Executor):
            name = getattr(factory, "__qualname__", None) or repr(factory)
            raise TypeError(f"executor={name} gave {shown(pool)}: it must give a concurrent.futures.Executor")
        # At the end of the interpreter the standard library waits for the calls in its pools, which may never end. The
        # function registered last is called first, so it is registered now: the pool's module has registered by now.
        getattr(threading, "_register_atexit", atexit.register)(self.close)
        self._pools.add(pool)
        return pool

    def _shut(self, pool: Executor) -> None:
        # No public name has the processes, and none ends them before Python 3.14.
        self._leaving.update((getattr(pool, "_processes", None) or {}).values())
        try:
            try:
                pool.shutdown(wait=False, cancel_futures=True)
            except TypeError:  # executors of other libraries may know `wait` only
                pool.shutdown(wait=False)
        except Exception as exc:  # the client of a cluster, say, may have been closed before
            logger.info("a pool (%s) could not be shut down: %s", type(pool).__name__, describe(exc))


def _key(factory: Callable[[], Executor]) -> Any:
    try:
        hash(factory)
    except TypeError:
        return id(factory)  # its slot keeps it alive
    return factory


pools = Pools()
"""The pools of this process."""
in_forked_child(pools.__init__)  # type: ignore[misc]
