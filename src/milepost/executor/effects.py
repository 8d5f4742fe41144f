"""Effects: the requests of the core. The core is a generator: it yields effects and is sent their answers.

The protocol, which both drivers keep:

* The driver performs an effect and sends its answer, or throws the exception that it met, `BaseException` included.
* After a throw the generator may yield further effects (to record a failure, to release a run). The driver performs
  them like any other, even after it threw a cancellation.
* A driver that is cancelled while a store's write is under way waits for it to end, then throws.
* When the generator returns, its value is the verb's; when it raises, the verb raises.

| effect | answer |
|---|---|
| `Call` | the return value of the function |
| `Ask` | the return value of the store's method |
| `Write` | the `Verdict` of one `Append`; the driver may write it together with those of other runs |
| `Sleep` | None, when the time is over |
| `Emit` | None, after the hooks and the stream have the event |
| `Hold` | a `LeaseView`: the lease is renewed from now on · `Drop`: None, it is renewed no more |
| `Gather` | a dict with one `Outcome` for each branch, when all have ended |
| `Alone` | None, when no other branch has a write under way: see there |
| `Ready` | None; it never reaches a driver: see there |

The driver reads an effect once and never keeps it. The effects that are made for every node are structs, because making
a struct takes half the time of making an object of a plain class.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from milepost.errors import MilepostError, StoreError
from milepost.model.failure import describe

if TYPE_CHECKING:
    from milepost.executor.context import Context
    from milepost.model.events import Event
    from milepost.model.executors import ExecutorLike
    from milepost.model.lifecycle import NodeStarted, StepStarted
    from milepost.store import Append, Release, Store, Token


class Effect:
    """The base of all effects."""

    __slots__ = ()


T = TypeVar("T")
Routine = Generator[Effect, Any, T]
"""A generator of effects that returns a T."""


OVERDUE_GRACE = 30.0
"""Seconds for which a sync call may go on after its timeout before the run fails."""


class HoldOver(BaseException):
    """The exception that a driver throws if this owner loses its right to the run while user code is running.

    The core asks `LeaseView` for the reason.
    """


class Call(Effect, msgspec.Struct, eq=False):
    """A call of user code: `fn(*args)`, with `context` current; a coroutine is awaited.

    `timeout` (seconds, or None) ends the attempt with `AttemptTimedOut`: an async call is cancelled; a sync one cannot
    be, so the driver reports it overdue, waits up to `OVERDUE_GRACE` more for it to end, and discards its result.
    Likewise, if the run is lost or cancelled meanwhile, the call ends with `HoldOver`: an async one at once, one in a
    thread when it has not ended by itself within `OVERDUE_GRACE`. A sync call in the caller's own thread ends when it
    returns. `announce` is the event that hooks may surround the call for. `is_quick` says that a sync function may be
    called in the thread of an event loop: it decides something and waits for nothing. `executor`, which needs a
    `context`, runs a sync function; for timeouts, cancels and lost runs such a call is like one in a thread. Async
    functions never run there.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    context: Context[Any] | None = None
    is_async: bool = False
    timeout: float | None = None
    announce: NodeStarted | StepStarted | None = None
    is_quick: bool = False
    executor: ExecutorLike | None = None


class Ask(Effect):
    """A call of a method of the store, by its name in the contract."""

    __slots__ = ("args", "kwargs", "method", "store")

    def __init__(self, store: Store, method: str, *args: Any, **kwargs: Any) -> None:
        self.store = store
        self.method = method
        self.args = args
        self.kwargs = kwargs


class Write(Effect, msgspec.Struct, eq=False):
    """An append of records of one run. The answer is its verdict."""

    store: Store
    append: Append


class Sleep(Effect):
    """A pause of `seconds`. It ends early when `held` shows a cancel or a lost lease."""

    __slots__ = ("held", "seconds")

    def __init__(self, seconds: float, held: LeaseView | None = None) -> None:
        self.seconds = seconds
        self.held = held


class Emit(Effect):
    """An event for the hooks and the stream."""

    __slots__ = ("event",)

    def __init__(self, event: Event) -> None:
        self.event = event


class LeaseView(Protocol):
    """The core's view of a lease that the driver renews. Its attributes change while the core runs."""

    is_lost: bool
    """True when the token is not current any more, or the lease has ended without being renewed."""
    cancel: str | None
    """The reason of an open cancel, or None."""
    is_draining: bool
    """True when the owner wants to give the run back at its next boundary."""
    is_ending: bool
    """True when the run is on its way to its end and rolls back its steps: a cancel changes nothing any more."""

    @property
    def is_over(self) -> bool:
        """True when this owner may not go on with the run."""
        ...

    def watch(self, tell: Callable[[], None]) -> None:
        """Call `tell` once, in any thread, when `is_over` becomes true; at once if it is true.

        `tell` must not block.
        """
        ...

    def unwatch(self, tell: Callable[[], None]) -> None:
        """Do not call `tell` any more."""
        ...


class Hold(Effect):
    """A request to keep the lease of `token` until `Drop`: `lease` seconds, renewed after every third of them."""

    __slots__ = ("lease", "store", "token")

    def __init__(self, store: Store, token: Token, lease: float) -> None:
        self.store = store
        self.token = token
        self.lease = lease


class Drop(Effect):
    """A request to stop keeping the lease of `token`.

    `owed` is a release that could not be written, to be tried again in the background; None: there is none.
    """

    __slots__ = ("owed", "store", "token")

    def __init__(self, store: Store, token: Token, owed: Release | None) -> None:
        self.store = store
        self.token = token
        self.owed = owed


class Outcome:
    """The end of a branch: a `value`, or an `error`."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self.value = value
        self.error = error


class Halted(BaseException):
    """The exception of a branch that something beside it has ended.

    It is thrown into the branch instead of making its next call, and raised at the branch's boundary.
    """


class Gather(Effect):
    """A request to step all `branches` at once. Only calls go to threads or tasks, at most `max_parallel` of them.

    An error of one branch does not stop the others: every branch ends, and the answer has an `Outcome` for each. Once
    `is_stopped` returns True, calls that wait for their turn are not made: `Halted` is thrown into their branches. An
    exception that is no `Exception` ends the gather at once, and running calls are left to their threads.
    """

    __slots__ = ("branches", "is_stopped", "max_parallel")

    def __init__(
        self,
        branches: Mapping[str, Routine[Any]],
        max_parallel: int | None = None,
        is_stopped: Callable[[], bool] | None = None,
    ) -> None:
        self.branches = branches
        self.max_parallel = max_parallel
        self.is_stopped = is_stopped


class Alone(Effect):
    """A request to let a branch write alone.

    The answer comes when no write of its run is under way, and no other branch is stepped until the next effect of this
    one. So nobody has drawn numbers after those that the branch draws then, if its write is undone.
    """

    __slots__ = ()


class Ready(Effect):
    """The end of a replay. A replayed routine yields it when no recorded answer is left: all after it is new.

    The routine that replays it takes the run, and only then lets it go on. Before that a replayed routine may ask for
    `Call`s that decide something, and for nothing else.
    """

    __slots__ = ()


def ask(store: Store, method: str, *args: Any, **kwargs: Any) -> Routine[Any]:
    """Call a method of the store and return its value. Any `Exception` but our own errors becomes a `StoreError`."""
    try:
        return (yield Ask(store, method, *args, **kwargs))
    except MilepostError:
        raise
    except Exception as exc:
        raise StoreError(
            f"the store {store.place} failed at {method}: {describe(exc)}; mend the store, then resume",
            store=store.place,
            op=method,
        ) from exc


def do_asks(routine: Routine[T]) -> T:
    """Run a routine that does nothing but ask stores, and return its value. It needs no driver."""
    try:
        effect = next(routine)
        while True:
            assert isinstance(effect, Ask)
            try:
                answer = getattr(effect.store, effect.method)(*effect.args, **effect.kwargs)
            except Exception as exc:
                effect = routine.throw(exc)
            else:
                effect = routine.send(answer)
    except StopIteration as stop:
        value: T = stop.value
        return value
