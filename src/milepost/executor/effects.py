"""What the core may ask for. The core is a generator: it yields effects and is sent their answers.

The protocol, which both drivers keep:

* The driver performs an effect and sends its answer, or throws what went wrong, `BaseException` included.
* After a throw the generator may yield further effects (to record a failure, to release a run); they are performed
  like any other, also when what was thrown is a cancellation.
* A driver that is cancelled while a store's write is under way waits for it to end, then throws.
* When the generator returns, its value is the verb's; when it raises, the verb raises.

| effect | answer |
|---|---|
| `Call` | what the function returned |
| `Ask` | what the store's method returned |
| `Write` | the `Verdict` of one `Append`; the driver may write it together with those of other runs |
| `Sleep` | None, when the time is over |
| `Emit` | None, after the hooks and the stream have it |
| `Hold` | a `LeaseView`: the lease is kept from now on · `Drop`: None, it no longer is |
| `Gather` | a dict of `Outcome`, one a branch, when all have ended |
| `Alone` | None, when nobody else has anything under way: see there |
| `Ready` | None; never reaches a driver: see there |

Effects are read once by the driver and never kept. Those that are made for every node are structs, which are made in half
the time of a class of one's own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from milepost.executor.context import Context
    from milepost.model.events import Event, NodeStarted, StepStarted
    from milepost.model.executors import ExecutorLike
    from milepost.store import Append, Release, Store, Token

__all__ = [
    "OVERDUE_GRACE",
    "Alone",
    "Ask",
    "Call",
    "Drop",
    "Effect",
    "Emit",
    "Gather",
    "Halted",
    "Hold",
    "HoldOver",
    "LeaseView",
    "Outcome",
    "Ready",
    "Routine",
    "Sleep",
    "Write",
]


class Effect:
    """The base of all effects."""

    __slots__ = ()


T = TypeVar("T")
Routine = Generator[Effect, Any, T]
"""A generator of effects that returns a T."""


OVERDUE_GRACE = 30.0
"""Seconds for which a sync call may go on after its timeout before the run fails."""


class HoldOver(BaseException):
    """What a driver throws where the run stopped being this owner's to go on with while user code was running.

    The core asks `LeaseView` why.
    """


class Call(Effect, msgspec.Struct, eq=False):
    """Call user code: `fn(*args)`, with `context` current; a coroutine is awaited.

    `timeout` (seconds, or None) ends the attempt with `AttemptTimedOut`: an async call is cancelled; a sync one cannot
    be, so the driver reports it overdue, waits up to `OVERDUE_GRACE` more for it to end, and discards its result. Likewise
    a run that is lost or cancelled meanwhile ends the call with `HoldOver`: an async one at once, one in a thread when it
    has not ended by itself within `OVERDUE_GRACE`. A sync call in the caller's own thread ends when it returns.
    `announce` is the event that hooks may surround the call for. `is_quick` says that a sync function may be called in
    the thread of an event loop: it decides something and waits for nothing. `executor`, which needs a `context`, has a sync
    function run there instead, as far as time, cancels and lost runs go like one in a thread; async ones never do.
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
    """Call a method of the store, by its name in the contract."""

    __slots__ = ("args", "kwargs", "method", "store")

    def __init__(self, store: Store, method: str, *args: Any, **kwargs: Any) -> None:
        self.store = store
        self.method = method
        self.args = args
        self.kwargs = kwargs


class Write(Effect, msgspec.Struct, eq=False):
    """Append records of one run. The answer is its verdict."""

    store: Store
    append: Append


class Sleep(Effect):
    """Let `seconds` pass; ends early when `held` tells of a cancel or a lost lease."""

    __slots__ = ("held", "seconds")

    def __init__(self, seconds: float, held: LeaseView | None = None) -> None:
        self.seconds = seconds
        self.held = held


class Emit(Effect):
    """Tell hooks and stream of an event."""

    __slots__ = ("event",)

    def __init__(self, event: Event) -> None:
        self.event = event


class LeaseView(Protocol):
    """A lease that is being kept, as the core sees it; it changes under the core's eyes."""

    is_lost: bool
    """The token is not current any more, or the lease passed unrenewed."""
    cancel: str | None
    """The reason of an open cancel, or None."""
    is_draining: bool
    """The owner wants to give the run back at its next boundary."""
    is_ending: bool
    """The run is on its way to its end, and what undoes its steps is done: a cancel is no news any more."""

    @property
    def is_over(self) -> bool:
        """Whether the run is not this owner's to go on with."""
        ...

    def watch(self, tell: Callable[[], None]) -> None:
        """Call `tell` once, in any thread, when `is_over` becomes true; it must not block. At once if it is."""
        ...

    def unwatch(self, tell: Callable[[], None]) -> None:
        """Do not call `tell` any more."""
        ...


class Hold(Effect):
    """Keep the lease of `token` (`lease` seconds, renewed every third of it) until `Drop`."""

    __slots__ = ("lease", "store", "token")

    def __init__(self, store: Store, token: Token, lease: float) -> None:
        self.store = store
        self.token = token
        self.lease = lease


class Drop(Effect):
    """Stop keeping the lease of `token`.

    `owed` is the release that could not be written, to be tried again in the background; None: nothing is owed.
    """

    __slots__ = ("owed", "store", "token")

    def __init__(self, store: Store, token: Token, owed: Release | None) -> None:
        self.store = store
        self.token = token
        self.owed = owed


class Outcome:
    """How a branch ended: with a `value`, or with an `error`."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self.value = value
        self.error = error


class Halted(BaseException):
    """Thrown into a branch whose call is not made any more, and raised at its boundary: something beside it has ended it."""


class Gather(Effect):
    """Step all `branches` at once; only their calls go to threads or tasks, at most `max_parallel` of them.

    An error of one branch does not stop the others: every branch ends, and the answer has an `Outcome` for each. Once
    `is_stopped` says so, calls that wait for their turn are not made: `Halted` is thrown into their branches. What is no
    `Exception` ends the gather at once, and running calls are left to their threads.
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
    """Let a branch write alone: no write of its run is under way, and no other branch is stepped until its next effect.

    So the numbers that it draws then are followed by nobody's, should its write be undone.
    """

    __slots__ = ()


class Ready(Effect):
    """What a replayed routine yields when nothing recorded is left to answer from: whatever comes next is new.

    The routine that replays it takes the run, and only then lets it go on. Before that it may ask for `Call`s that decide
    something, and for nothing else.
    """

    __slots__ = ()
