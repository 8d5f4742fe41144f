"""The driver for event loops, and the queue that brings its calls of a store into one thread."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Generator, Sequence
from contextlib import nullcontext, suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, TypeVar

from milepost.drivers.base import GLANCE, INSTANT, MAX_THREADS, Driver, StreamClosed, held_of, invoke, is_awake, watched
from milepost.drivers.branches import Branch, Branches, merged
from milepost.drivers.threads import Pending
from milepost.errors import AttemptTimedOut, StoreError
from milepost.executor.context import current_context
from milepost.executor.effects import (
    OVERDUE_GRACE,
    Alone,
    Ask,
    Call,
    Drop,
    Effect,
    Gather,
    HoldOver,
    LeaseView,
    Outcome,
    Routine,
    Sleep,
    Write,
)
from milepost.model.events import Hook, surround
from milepost.model.failure import error_of
from milepost.model.ids import Clock, in_forked_child
from milepost.store import Store

if TYPE_CHECKING:
    from milepost.model.events import Event

# The queue of a store, with one store call in flight: event loops reach a blocking store through it without
# blocking.
#
# Each store has one queue: a daemon thread and the requests that wait for it. When the thread is free it takes all
# waiting requests. It hands all appends over in one `append(batch)` so that they share a commit (those with statements
# one by one, for each has a commit of its own), and performs the other calls one by one. A run has at most one request in
# a queue at a time, so the order between requests does not matter. Answers go back with one wake-up per event loop and
# round.
#
# A store that does not answer blocks its queue's thread and all requests that wait for it. Tasks that must end all the
# same give up their answers.


IDLE = 10.0
"""Seconds after which a queue without work ends its thread."""
PROMPT = 1.0
"""Seconds within which a store answers those who can't wait for it."""


class Answer:
    """The future answer of a store. A task that is cancelled meanwhile waits for it all the same, and is cancelled then.

    So a write that has begun has ended before anybody hears of the cancel. The task that awaits it goes on within the
    wake-up that brings the answer. An `asyncio.Future` would have it go on in the loop's next turn.
    """

    __slots__ = ("_asyncio_future_blocking", "_context", "_error", "_go_on", "_loop", "_value", "is_done", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self._go_on: Callable[[Answer], object] | None = None
        self._context: Context | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self.task = asyncio.current_task(loop)
        self.is_done = False

    def __await__(self) -> Generator[Answer, None, Any]:
        if not self.is_done:
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Give its answer to the task that waits, in its loop, and let it go on."""
        self._value, self._error, self.is_done = value, error, True
        if self._go_on is not None and self._context is not None:
            self._context.run(self._go_on, self)

    # What a task asks of the future that it waits for.

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the task."""
        return self._loop

    def add_done_callback(self, go_on: Callable[[Answer], object], *, context: Context) -> None:
        """Keep what lets the task go on."""
        self._go_on, self._context = go_on, context

    def result(self) -> Any:
        """Return the value, or raise the error."""
        if self._error is not None:
            raise self._error
        return self._value

    def cancel(self, msg: Any | None = None) -> bool:
        """Refuse the cancel: the task is cancelled when it goes on."""
        return False


Request = tuple[Effect, asyncio.AbstractEventLoop, Answer]
Settled = tuple[Answer, Any, BaseException | None]


class StoreQueue:
    """The queue through which event loops reach one store."""

    def __init__(self) -> None:
        # The queue does not refer to the store, which each request names: an idle queue keeps no store alive that its
        # user has dropped.
        self._waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_running = False
        self._open: set[Answer] = set()
        self._busy_since: float | None = None
        """The start of its thread's present store call, in the machine's monotonic seconds; None between rounds."""

    def submit(self, effect: Effect) -> Answer:
        """Hand over an `Ask` or a `Write`."""
        loop = asyncio.get_running_loop()
        answer = Answer(loop)
        self._open.add(answer)
        self._waiting.put((effect, loop, answer))
        if not self._is_running:
            with self._lock:
                if not self._is_running:
                    self._is_running = True
                    threading.Thread(target=self._run, name="milepost-lane", daemon=True).start()
        return answer

    def give_up(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        """Fail the answers that `tasks` of this loop wait for, if the store does not answer.

        A call that the store has begun may still count.
        """
        since = self._busy_since
        if since is None or time.monotonic() < since + PROMPT:
            return
        for answer in [*self._open]:
            if answer.task in tasks and not answer.is_done:
                failed: Settled = (
                    answer,
                    None,
                    StoreError("the store did not answer in time: look at the way to it", op="wait"),
                )
                # In a turn of its own: the caller is a task, inside which no other can go on.
                answer.get_loop().call_soon(self._settle, [failed])

    def _run(self) -> None:
        while True:
            try:
                requests = [self._waiting.get(timeout=IDLE)]
            except queue.Empty:
                with self._lock:
                    if self._waiting.empty():
                        self._is_running = False
                        return
                continue
            while not self._waiting.empty():
                requests.append(self._waiting.get())
            self._perform([request for request in requests if not request[2].is_done])
            self._busy_since = None
            del requests

    def _perform(self, requests: list[Request]) -> None:
        answers: dict[asyncio.AbstractEventLoop, list[Settled]] = {}
        batches = _batches(requests)
        for batch in batches:
            self._busy_since = time.monotonic()
            try:
                values = _carry_out([effect for effect, _, _ in batch])
            except BaseException as exc:
                if len(batch) > 1 and isinstance(exc, StoreError) and exc.is_of_one_run:
                    batches += [[request] for request in batch]  # nothing was written: only the bad one fails alone
                    continue
                for _, loop, answer in batch:
                    answers.setdefault(loop, []).append((answer, None, exc))
            else:
                for (_, loop, answer), value in zip(batch, values, strict=True):
                    answers.setdefault(loop, []).append((answer, value, None))
        for loop, settled in answers.items():
            try:
                loop.call_soon_threadsafe(self._settle, settled)
            except RuntimeError:
                # The loop was closed meanwhile: nobody is left to hear the answer.
                self._open.difference_update(answer for answer, _, _ in settled)

    def _settle(self, answers: list[Settled]) -> None:
        for number, (answer, value, error) in enumerate(answers, 1):
            self._open.discard(answer)
            if answer.is_done:  # given up
                continue
            try:
                answer.settle(value, error)
            except BaseException:
                # It comes out of the task, and ends the loop. The others go on if that runs again.
                answer.get_loop().call_soon(self._settle, answers[number:])
                raise


def _batches(requests: list[Request]) -> list[list[Request]]:
    """Return batches: one of all appends that may share a commit, and one for each other request."""
    if len(requests) == 1:
        return [requests]
    shared, alone = [], []
    for request in requests:
        effect = request[0]
        if type(effect) is Write and not effect.append.statements:
            shared.append(request)
        else:
            alone.append([request])
    return [shared, *alone] if shared else alone


def _carry_out(effects: list[Effect]) -> Sequence[Any]:
    """Call the store for effects that share a call, and return the answer of each."""
    effect = effects[0]
    if isinstance(effect, Ask):
        return (getattr(effect.store, effect.method)(*effect.args, **effect.kwargs),)
    assert isinstance(effect, Write)
    return effect.store.append([write.append for write in effects])  # type: ignore[attr-defined]


async def _carried_out_here(effect: Ask | Write) -> Any:
    return _carry_out([effect])[0]


_lanes: weakref.WeakKeyDictionary[Store, StoreQueue] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def lane_of(store: Store) -> StoreQueue:
    """Return the queue of a store; it is the same for all event loops of the process."""
    lane = _lanes.get(store)
    if lane is None:
        with _lock:
            lane = _lanes.setdefault(store, StoreQueue())
    return lane


@in_forked_child
def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _lanes.clear()


# -- The driver that awaits: effects are performed in the caller's task, blocking ones in threads --


T = TypeVar("T")


class _Watch:
    """A block whose `await` in the current `task` is cancelled, with `HoldOver`, once the run is lost or cancelled.

    It is built as `asyncio.timeout` is: a cancel of the task by somebody else stays what it is.
    """

    __slots__ = ("_before", "_has_cancelled", "_held", "_is_left", "_loop", "_task")

    def __init__(self, loop: asyncio.AbstractEventLoop, held: LeaseView, task: asyncio.Task[Any] | None) -> None:
        assert task is not None
        self._loop = loop
        self._held = held
        self._task, self._before = task, task.cancelling()
        self._has_cancelled = self._is_left = False

    def __enter__(self) -> None:
        self._held.watch(self._tell)

    def _tell(self) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if not self._is_left and self._held.is_over:  # the run may have begun to end meanwhile
            self._has_cancelled = True
            self._task.cancel()

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: Any) -> None:
        self._is_left = True
        self._held.unwatch(self._tell)
        if self._has_cancelled and self._task.uncancel() <= self._before and exc_type is asyncio.CancelledError:
            raise HoldOver from exc


class AsyncDriver(Driver):
    """A driver that performs effects in the caller's task, blocking ones in threads."""

    def __init__(self, clock: Clock, hooks: Sequence[Hook] = ()) -> None:
        super().__init__(clock, hooks)
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._cancels = 0 if self._task is None else self._task.cancelling()
        """The number of cancels of that task before the routine began."""
        self._wake: asyncio.Event | None = None
        self._leaving: set[asyncio.Future[None]] = set()
        """Tasks that wait to leave calls to their threads. They are kept here so that they are not collected."""

    def live(self, event: Event) -> None:
        """Take an event from inside a running node, in whatever thread it runs."""
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if is_here:
            self.publish(event)
        else:
            self._loop.call_soon_threadsafe(self.publish, event)

    async def run(self, routine: Routine[T]) -> T:
        """Drive `routine` to its end, and return its value."""
        try:
            effect = next(routine)
            while True:
                try:
                    if isinstance(effect, Write):
                        answer = await self._store_call(effect)
                    elif _is_done_here(effect):
                        answer = invoke(effect)
                    else:
                        answer = await self.perform(effect)
                except BaseException as exc:
                    effect = routine.throw(exc)
                else:
                    effect = routine.send(answer)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def _comes_from_outside(self, end: BaseException, task: asyncio.Task[Any] | None) -> bool:
        """Return whether somebody else has cancelled the `task` of a call, or closes its coroutine."""
        if task is None:
            return True
        if isinstance(end, GeneratorExit):
            try:
                return asyncio.current_task() is not task
            except RuntimeError:  # no loop runs any more
                return True
        return task.cancelling() > (self._cancels if task is self._task else 0)

    def _result_of(self, task: asyncio.Future[Any]) -> Any:
        """Return the result of a task of this driver's own that has ended, or raise its error."""
        try:
            value = task.result()
        except asyncio.CancelledError as end:
            # Nobody here has cancelled it: its own code did.
            raise error_of(end) or end from end
        if type(value) is Ended:
            raise value.error
        return value

    async def perform(self, effect: Effect) -> Any:
        """Return the answer of one effect, or raise its error."""
        kind = type(effect)
        if kind is Call:
            if _is_done_here(effect):
                return invoke(effect)
            return await self._call(effect)  # type: ignore[arg-type]
        if kind is Write or kind is Ask:
            return await self._store_call(effect)  # type: ignore[arg-type]
        if isinstance(effect, Sleep):
            await self._sleep(effect)
            return None
        if isinstance(effect, Gather):
            return await self._gather(effect)
        return self.perform_quick(effect)

    async def _gather(self, gather: Gather) -> dict[str, Outcome]:
        """Step all branches here; calls of user code and sleeps become tasks.

        Everything else is done in between, so that a branch that ends with its call has ended before the next call
        begins.
        """
        branches = Branches(gather, MAX_THREADS)
        try:
            await self._step_all(branches)
        except GeneratorExit:
            raise
        except BaseException as end:
            await self.run(branches.ended_by(end))
            raise
        return branches.outcomes

    async def _step_all(self, branches: Branches) -> None:
        lonely: deque[Branch] = deque()
        tasks: dict[asyncio.Future[Any], tuple[int, Branch, bool]] = {}
        numbers = itertools.count()
        try:
            while not branches.is_over:
                writes: list[tuple[Branch, Write]] = []
                while (item := branches.step()) is not None:
                    branch, effect = item
                    if isinstance(effect, Call) and not effect.is_quick:
                        branches.want(branch, effect)
                    elif isinstance(effect, Write):
                        writes.append((branch, effect))
                    elif isinstance(effect, Alone):
                        lonely.append(branch)
                    elif isinstance(effect, Sleep) or (isinstance(effect, Call) and effect.is_async):
                        tasks[asyncio.ensure_future(_ended(self.perform, effect))] = (next(numbers), branch, False)
                    else:
                        await self._settle(branches, [branch], self.perform(effect))
                for append, settled in merged(writes):
                    await self._settle(branches, settled, self._store_call(Write(writes[0][1].store, append)))
                if lonely and not writes and not branches.is_ready:
                    branches.answer(lonely.popleft(), None)
                if branches.is_ready:
                    continue
                for branch, call in branches.admitted():
                    tasks[asyncio.ensure_future(_ended(self.perform, call))] = (next(numbers), branch, True)
                if branches.is_ready or branches.is_over:
                    continue
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                # In the order in which they began, because the order of a set differs each time.
                for task in sorted(done, key=tasks.__getitem__):
                    _, branch, is_call = tasks.pop(task)
                    if is_call:
                        branches.has_called(branch)
                    await self._settle(branches, [branch], self._outcome_of(task))
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                # The clean-up of the tasks runs before anything else does.
                await asyncio.wait(tasks)
            for task in tasks:
                if task.done() and not task.cancelled():
                    task.exception()

    async def _outcome_of(self, task: asyncio.Future[Any]) -> Any:
        return self._result_of(task)

    async def _settle(self, branches: Branches, settled: list[Branch], work: Awaitable[Any]) -> None:
        try:
            answer = await work
        except asyncio.CancelledError:
            if isinstance(work, Answer) and work.is_done:
                # The cancel has waited for a write: its branches hear of that first.
                await self._settle(branches, settled, work)
            raise
        except Exception as exc:
            for branch in settled:
                branches.fail(branch, exc)
        else:
            for branch in settled:
                branches.answer(branch, answer)

    def _call(self, call: Call) -> Awaitable[Any]:
        if call.timeout is not None:
            return self._call_in_time(call)
        return self._await(call) if call.is_async else self._elsewhere(call)[0]

    async def _await(self, call: Call) -> Any:
        """Await a call of an async function; it is cancelled when its run is lost or cancelled."""
        task = asyncio.current_task()
        held = held_of(call)
        with nullcontext() if held is None else _Watch(self._loop, held, task):
            around = self.publish(call.announce) if call.announce is not None else ()
            reset = None if call.context is None else current_context.set(call.context)
            try:
                if around and call.context is not None:
                    with surround(around, call.context.run_id):
                        return await call.fn(*call.args)
                return await call.fn(*call.args)
            except (GeneratorExit, asyncio.CancelledError) as end:
                if self._comes_from_outside(end, task):
                    raise
                raise error_of(end) or end from end
            finally:
                if reset is not None:
                    current_context.reset(reset)

    def _elsewhere(self, call: Call) -> tuple[asyncio.Future[Any], Pending]:
        """Have an executor or a thread run a sync call; return its outcome as a future here, and as a `Pending`."""
        loop = self._loop
        future: asyncio.Future[Any] = loop.create_future()

        def settle(promise: Pending) -> None:
            if future.done():
                return
            try:
                future.set_result(promise.get())
            except BaseException as exc:
                future.set_exception(error_of(exc) or exc)

        def then(promise: Pending) -> None:
            try:
                loop.call_soon_threadsafe(settle, promise)
            except RuntimeError:
                return  # the loop was closed meanwhile: nobody is left to hear it

        promise = self.submit(call, then)
        if call.executor is not None:
            # The future may end first, by a cancel of its task say; a call that has ended is not touched.
            future.add_done_callback(lambda _: promise.abandon())
        held = held_of(call)
        if held is not None:
            self._leave_when_over(future, promise, held)
        return future, promise

    def _leave_when_over(self, future: asyncio.Future[Any], promise: Pending, held: LeaseView) -> None:
        """End such a call with `HoldOver` if it goes on long after its run was lost or cancelled."""

        async def leave() -> None:
            await self.clock.sleep(OVERDUE_GRACE)
            if not future.done():
                future.set_exception(HoldOver())

        def begin() -> None:
            if future.done() or not held.is_over:
                return
            if promise.recall():
                future.set_exception(HoldOver())
            else:
                self._leaving.add(asyncio.ensure_future(leave()))

        def tell() -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(begin)

        held.watch(tell)
        future.add_done_callback(lambda _: held.unwatch(tell))

    async def _call_in_time(self, call: Call) -> Any:
        assert call.timeout is not None
        promise: Pending | None = None
        if call.is_async:
            task: asyncio.Future[Any] = asyncio.ensure_future(_ended(self._await, call))
        else:
            task, promise = self._elsewhere(call)
        try:
            if await self._ends_within(task, call.timeout):
                return self._result_of(task)
            if promise is None or promise.recall():
                raise AttemptTimedOut(call.timeout)
            self.mark_overdue(call)
            is_running = not await self._ends_within(task, OVERDUE_GRACE)
            if not is_running and not task.cancelled():
                task.exception()
            raise AttemptTimedOut(call.timeout, is_running=is_running)
        finally:
            if not task.done():
                task.cancel()
                if call.is_async:
                    # The clean-up of the task runs before anything else does.
                    await asyncio.wait({task})
            if task.done() and not task.cancelled():
                task.exception()

    async def _ends_within(self, task: asyncio.Future[Any], seconds: float) -> bool:
        timer = asyncio.ensure_future(self.clock.sleep(seconds))
        try:
            await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
        return task.done()

    async def _sleep(self, effect: Sleep) -> None:
        ends = self.clock.monotonic() + effect.seconds
        while (left := ends - self.clock.monotonic()) > INSTANT and not is_awake(effect.held):
            if effect.held is None:
                await self.clock.sleep(left)
            else:
                await self._sleep_watching(min(left, GLANCE), effect.held)

    async def _sleep_watching(self, seconds: float, held: LeaseView) -> None:
        """Sleep, and return early when `held` is over."""
        over = asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(over.set)

        with watched(held, wake):
            waits = [asyncio.ensure_future(self.clock.sleep(seconds)), asyncio.ensure_future(over.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    def _store_call(self, effect: Ask | Write) -> Awaitable[Any]:
        return lane_of(effect.store).submit(effect) if effect.store.is_blocking else _carried_out_here(effect)

    async def stream(self, routine: Routine[Any]) -> AsyncIterator[Event]:
        """Iterate over the events of `routine` as they come; breaking off stops it at a durable point."""
        events: deque[Event] = deque()
        self._wake = asyncio.Event()
        self.stream_to = self._streamed(events)
        try:
            effect = next(routine)
            while True:
                try:
                    if type(effect) is Call or type(effect) is Gather:
                        task = asyncio.ensure_future(_ended(self.perform, effect))
                        try:
                            while not task.done():
                                await self._report_end(task)
                                while events:
                                    yield events.popleft()
                        finally:
                            if not task.done():
                                task.cancel()
                                await asyncio.wait({task})
                        answer = self._result_of(task)
                    else:
                        answer = await self.perform(effect)
                except GeneratorExit:
                    raise
                except BaseException as exc:
                    effect = routine.throw(exc)
                else:
                    effect = routine.send(answer)
                while events:
                    yield events.popleft()
        except StopIteration:
            while events:
                yield events.popleft()
        except GeneratorExit:
            self.stream_to = None
            await self._abandon(routine, effect)
            raise
        except BaseException:
            # The error comes after the events that report it.
            while events:
                yield events.popleft()
            raise

    def _streamed(self, events: deque[Event]) -> Callable[[Event], None]:
        def tell(event: Event) -> None:
            events.append(event)
            if self._wake is not None:
                self._wake.set()

        return tell

    async def _report_end(self, task: asyncio.Future[Any]) -> None:
        """Wait until there is an event, or the call has ended."""
        assert self._wake is not None
        self._wake.clear()
        waiter = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()

    async def _abandon(self, routine: Routine[Any], pending: Effect) -> None:
        """Stop a routine that waits for `pending`. A routine that is ending already goes on to its end."""
        try:
            effect: Effect = pending
            if not isinstance(pending, Drop):
                effect = routine.throw(StreamClosed("its stream was closed"))
            while True:
                try:
                    answer = await self.perform(effect)
                except BaseException as exc:
                    effect = routine.throw(exc)
                else:
                    effect = routine.send(answer)
        except (StopIteration, StreamClosed):
            return


class Ended(NamedTuple):
    """The end of a task by an error that it must not raise, because asyncio stops its whole loop for one."""

    error: SystemExit | KeyboardInterrupt


async def _ended(work: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    try:
        return await work(*args)
    except (SystemExit, KeyboardInterrupt) as exc:
        return Ended(exc)


def _is_done_here(effect: Effect) -> TypeGuard[Call]:
    """Return whether the effect is a call that decides something, and so has an answer without anybody waiting."""
    return type(effect) is Call and effect.is_quick and not effect.is_async and effect.timeout is None
