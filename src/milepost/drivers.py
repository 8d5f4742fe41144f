"""Performs the effects that the core yields: one driver that blocks, one that awaits. Neither holds any logic.

Both keep the protocol of `milepost.effects`. They differ in how they wait, and in where user code runs:

| effect | `SyncDriver` | `AsyncDriver` |
|---|---|---|
| `Call` of a sync function | in the caller's thread; with a timeout or while streaming in a daemon thread | a daemon thread |
| `Call` of a coroutine function | refused before anything runs | awaited in the caller's task |
| `Write`, `Ask` | in the caller's thread | in the store's lane, `milepost.lane` |
| `Gather` | branches are stepped here, their calls go to threads | stepped here, their calls become tasks |

Contextvars are copied into threads that run user code. A stream goes in step with its consumer: the run does not go on
until the next event is asked for.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import heapq
import logging
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, TypeVar

from milepost.branches import Branch, Branches, merged
from milepost.clock import Clock
from milepost.context import current_context
from milepost.effects import (
    OVERDUE_GRACE,
    Ask,
    AttemptTimedOut,
    Call,
    Drop,
    Effect,
    Emit,
    Gather,
    Held,
    Hold,
    Outcome,
    Routine,
    Sleep,
    Write,
)
from milepost.events import AttemptFailed, CheckpointFailed, Event, NodeOverdue, RunCompleted, RunStarted
from milepost.heartbeat import heartbeat
from milepost.hooks import Hook, notify, surround
from milepost.lane import lane_of
from milepost.telling import sentence
from milepost.threads import Promise, threads

__all__ = ["AsyncDriver", "SyncDriver", "is_logged"]

T = TypeVar("T")

logger = logging.getLogger("milepost")

MAX_THREADS = 32
"""Calls that a `Gather` without its own limit runs at once under the sync driver."""
GLANCE = 0.5
"""Seconds between two looks at the lease while a driver sleeps."""


class StreamClosed(BaseException):
    """Thrown into the core when the consumer of a stream has gone: the run stops at a durable point."""


def is_logged() -> bool:
    """Whether somebody reads events in the log; they need not be made otherwise."""
    return logger.isEnabledFor(logging.INFO)


def log(event: Event) -> None:
    """One record per event: WARNING for what went wrong, INFO for a run, DEBUG for the rest."""
    if isinstance(event, (AttemptFailed, CheckpointFailed, NodeOverdue)):
        level = logging.WARNING
    elif isinstance(event, (RunStarted, RunCompleted)):
        level = logging.INFO
    else:
        level = logging.DEBUG
    if logger.isEnabledFor(level):
        extra = {"run_id": event.run_id, "node_id": getattr(event, "node_id", None)}
        logger.log(level, "%s", sentence(event), extra=extra)


class Driver:
    """What both drivers share: events on their way, and the effects that neither block nor call user code."""

    def __init__(self, clock: Clock, hooks: Sequence[Hook] = ()) -> None:
        self.clock = clock
        self.hooks = hooks
        self.stream_to: Callable[[Event], None] | None = None

    def publish(self, event: Event) -> list[Any]:
        """Log the event, tell hooks and stream; the context managers that hooks returned."""
        log(event)
        around = notify(self.hooks, event) if self.hooks else []
        if self.stream_to is not None:
            self.stream_to(event)
        return around

    def perform_quick(self, effect: Effect) -> Any:
        """The answer of an effect that only concerns this process."""
        if isinstance(effect, Emit):
            self.publish(effect.event)
            return None
        if isinstance(effect, Hold):
            return heartbeat.hold(effect.store, effect.token, effect.lease, self.clock)
        if isinstance(effect, Drop):
            heartbeat.drop(effect.store, effect.token, effect.owed)
            return None
        raise TypeError(f"this driver does not perform {type(effect).__name__}")

    def bind(self, call: Call) -> Callable[[], Any]:
        """`call` as a function without arguments, for a thread: in a copy of this context, surrounded by hooks."""
        around = self.publish(call.announce) if call.announce is not None else ()
        context = contextvars.copy_context()
        return lambda: context.run(invoke, call, around)

    def mark_overdue(self, call: Call) -> None:
        """Tell the call, and whoever listens, that its time is over."""
        if call.context is not None:
            call.context._stop = True
            self.publish(
                NodeOverdue(run_id=call.context.run_id, timestamp=self.clock.time(), node_id=call.context.node_id)
            )


def invoke(call: Call, around: Sequence[Any] = ()) -> Any:
    """Call user code with its context current; of a coroutine function this gives the coroutine."""
    if call.context is None:
        return call.fn(*call.args)
    reset = current_context.set(call.context)
    try:
        if around:
            with surround(around, call.context.run_id):
                return call.fn(*call.args)
        return call.fn(*call.args)
    except GeneratorExit as exc:
        # Thrown into the core it would mean that nobody performs effects any more.
        raise RuntimeError("user code raised GeneratorExit outside a generator") from exc
    finally:
        current_context.reset(reset)


def _put(ended: queue.SimpleQueue[tuple[Branch, Promise]], branch: Branch, promise: Promise) -> None:
    ended.put((branch, promise))


def is_over(held: Held | None) -> bool:
    """Whether a sleep need not go on, because the run is lost or cancelled."""
    return held is not None and (held.is_lost or held.cancel is not None)


class SyncDriver(Driver):
    """Performs effects in the caller's thread."""

    def live(self, event: Event) -> None:
        """Take an event from inside a running node, in whatever thread it runs."""
        self.publish(event)

    def run(self, routine: Routine[T]) -> T:
        """Drive `routine` to its end."""
        value: Any = None
        step: Callable[[Any], Effect] = routine.send
        while True:
            try:
                effect = step(value)
                try:
                    value, step = self.perform(effect), routine.send
                except BaseException as exc:
                    value, step = exc, routine.throw
            except StopIteration as stop:
                result: T = stop.value
                return result
            except BaseException as exc:
                if getgeneratorstate(routine) == GEN_CLOSED:
                    raise
                # Ctrl-C came between two effects: the routine hears of it like of any other.
                value, step = exc, routine.throw

    def perform(self, effect: Effect) -> Any:
        """The answer of one effect, or raise what went wrong."""
        kind = type(effect)
        if kind is Call:
            return self._call(effect)  # type: ignore[arg-type]
        if kind is Write:
            return effect.store.append((effect.append,))[0]  # type: ignore[attr-defined]
        if kind is Ask:
            return getattr(effect.store, effect.method)(*effect.args, **effect.kwargs)  # type: ignore[attr-defined]
        if isinstance(effect, Sleep):
            self._sleep(effect)
            return None
        if isinstance(effect, Gather):
            return self._gather(effect)
        return self.perform_quick(effect)

    def _gather(self, gather: Gather) -> dict[str, Outcome]:
        """Step all branches here; only calls of user code go to threads."""
        branches = Branches(gather)
        limit = gather.max_parallel or MAX_THREADS
        waiting: deque[tuple[Branch, Call]] = deque()
        sleeping: list[tuple[float, int, Branch]] = []
        ended: queue.SimpleQueue[tuple[Branch, Promise]] = queue.SimpleQueue()
        running = 0
        while not branches.is_over:
            writes: list[tuple[Branch, Write]] = []
            while (item := branches.step()) is not None:
                branch, effect = item
                if isinstance(effect, Call) and not effect.is_quick:
                    waiting.append((branch, effect))
                elif isinstance(effect, Write):
                    writes.append((branch, effect))
                elif isinstance(effect, Sleep):
                    wake = self.clock.monotonic() + effect.seconds
                    heapq.heappush(sleeping, (wake, id(branch), branch))
                else:
                    self._answer(branches, branch, effect)
            if writes:
                self._write_together(branches, writes)
                continue
            while waiting and running < limit:
                branch, call = waiting.popleft()
                work = self.bind(call) if call.timeout is None else functools.partial(self._call, call)
                threads.submit(work, functools.partial(_put, ended, branch))
                running += 1
            if branches.is_over:
                break
            running -= self._await_one(branches, sleeping, ended)
        return branches.outcomes

    def _answer(self, branches: Branches, branch: Branch, effect: Effect) -> None:
        try:
            branches.answer(branch, self.perform(effect))
        except Exception as exc:
            branches.fail(branch, exc)

    def _write_together(self, branches: Branches, writes: list[tuple[Branch, Write]]) -> None:
        """One append a run for all that its branches hand in."""
        together = merged(writes)
        try:
            verdicts = writes[0][1].store.append([append for append, _ in together])
        except Exception as exc:
            for branch, _ in writes:
                branches.fail(branch, exc)
            return
        for (_, settled), verdict in zip(together, verdicts, strict=True):
            for branch in settled:
                branches.answer(branch, verdict)

    def _await_one(
        self,
        branches: Branches,
        sleeping: list[tuple[float, int, Branch]],
        ended: queue.SimpleQueue[tuple[Branch, Promise]],
    ) -> int:
        """Wait for the end of a call or of a sleep; how many calls have ended."""
        left = None if not sleeping else min(GLANCE, max(0.0, sleeping[0][0] - self.clock.monotonic()))
        try:
            branch, promise = ended.get(timeout=left)
        except queue.Empty:
            while sleeping and sleeping[0][0] <= self.clock.monotonic():
                branches.answer(heapq.heappop(sleeping)[2], None)
            return 0
        try:
            branches.answer(branch, promise.get())
        except BaseException as exc:
            branches.fail(branch, exc)
        return 1

    def _call(self, call: Call) -> Any:
        if call.timeout is None:
            return invoke(call, self.publish(call.announce) if call.announce is not None else ())
        promise = threads.submit(self.bind(call))
        if not self.clock.wait(promise.done, call.timeout):
            self.mark_overdue(call)
            is_running = not self.clock.wait(promise.done, OVERDUE_GRACE)
            raise AttemptTimedOut(call.timeout, is_running=is_running)
        return promise.get()

    def _sleep(self, effect: Sleep) -> None:
        never = threading.Event()
        ends = self.clock.monotonic() + effect.seconds
        while (left := ends - self.clock.monotonic()) > 0 and not is_over(effect.held):
            self.clock.wait(never, left if effect.held is None else min(left, GLANCE))

    def stream(self, routine: Routine[Any]) -> Iterator[Event]:
        """The events of `routine` as they come; breaking off stops it at a durable point."""
        events: queue.SimpleQueue[Event | Promise] = queue.SimpleQueue()
        self.stream_to = events.put
        try:
            effect = next(routine)
            while True:
                try:
                    if isinstance(effect, Call) and not effect.is_quick:
                        answer = yield from self._call_live(effect, events)
                    else:
                        answer = self.perform(effect)
                except GeneratorExit:
                    raise
                except BaseException as exc:
                    effect = routine.throw(exc)
                else:
                    effect = routine.send(answer)
                yield from _drain(events)
        except StopIteration:
            yield from _drain(events)
        except GeneratorExit:
            self.stream_to = None
            self._abandon(routine, effect)
            raise
        except BaseException:
            # The error comes after the events that tell of it.
            yield from _drain(events)
            raise

    def _call_live(self, call: Call, events: queue.SimpleQueue[Any]) -> Generator[Event, None, Any]:
        """Run a call in a thread and yield what it tells meanwhile; returns its value."""
        began = self.clock.monotonic()
        promise = threads.submit(self.bind(call), then=events.put)
        allowed = call.timeout
        while True:
            try:
                item = events.get(timeout=None if allowed is None else 0.05)
            except queue.Empty:
                item = None
            if item is promise:
                if allowed is not None and call.timeout is not None and allowed > call.timeout:
                    raise AttemptTimedOut(call.timeout)
                return promise.get()
            if item is not None:
                try:
                    yield item
                except GeneratorExit:
                    self._let_end(call, promise)
                    raise
            # A call that tells much must not escape its timeout; one that has ended has kept it, however slow the consumer.
            if allowed is not None and not promise.done.is_set() and self.clock.monotonic() - began >= allowed:
                assert call.timeout is not None
                if allowed > call.timeout:
                    raise AttemptTimedOut(call.timeout, is_running=True)
                allowed = call.timeout + OVERDUE_GRACE
                self.mark_overdue(call)

    def _let_end(self, call: Call, promise: Promise) -> None:
        """Wait for a call that nobody wants any more, so that it does not run beside a resume of its run."""
        if call.context is not None:
            call.context._stop = True
        self.clock.wait(promise.done, OVERDUE_GRACE)

    def _abandon(self, routine: Routine[Any], pending: Effect) -> None:
        """Stop a routine that waits for `pending`; one that is leaving already is let go to its end."""
        try:
            effect: Effect = pending
            if not isinstance(pending, Drop):
                effect = routine.throw(StreamClosed("its stream was closed"))
            while True:
                try:
                    answer = self.perform(effect)
                except BaseException as exc:
                    effect = routine.throw(exc)
                else:
                    effect = routine.send(answer)
        except (StopIteration, StreamClosed):
            return


def _drain(events: queue.SimpleQueue[Any]) -> Iterator[Event]:
    while not events.empty():
        item = events.get()
        if not isinstance(item, Promise):
            yield item


class AsyncDriver(Driver):
    """Performs effects in the caller's task; blocking ones in threads."""

    def __init__(self, clock: Clock, hooks: Sequence[Hook] = ()) -> None:
        super().__init__(clock, hooks)
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._wake: asyncio.Event | None = None

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
        """Drive `routine` to its end."""
        try:
            effect = next(routine)
            while True:
                try:
                    answer = await self.perform(effect)
                except BaseException as exc:
                    effect = routine.throw(exc)
                else:
                    effect = routine.send(answer)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def _is_awaited(self) -> bool:
        try:
            return self._task is not None and asyncio.current_task() is self._task
        except RuntimeError:
            return False

    async def perform(self, effect: Effect) -> Any:
        """The answer of one effect, or raise what went wrong."""
        kind = type(effect)
        if kind is Call:
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
        """Step all branches here; calls of user code and sleeps become tasks."""
        branches = Branches(gather)
        waiting: deque[tuple[Branch, Call]] = deque()
        tasks: dict[asyncio.Future[Any], tuple[Branch, bool]] = {}
        try:
            while not branches.is_over:
                writes: list[tuple[Branch, Write]] = []
                while (item := branches.step()) is not None:
                    branch, effect = item
                    if isinstance(effect, Call) and not effect.is_quick:
                        waiting.append((branch, effect))
                    elif isinstance(effect, Write):
                        writes.append((branch, effect))
                    else:
                        tasks[asyncio.ensure_future(self.perform(effect))] = (branch, False)
                for append, settled in merged(writes):
                    write = self.perform(Write(writes[0][1].store, append))
                    await self._settle(branches, settled, write)
                running = sum(is_call for _, is_call in tasks.values())
                while waiting and (gather.max_parallel is None or running < gather.max_parallel):
                    branch, call = waiting.popleft()
                    tasks[asyncio.ensure_future(self.perform(call))] = (branch, True)
                    running += 1
                if writes or branches.is_over:
                    continue
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    await self._settle(branches, [tasks.pop(task)[0]], task)
        finally:
            for task in tasks:
                task.cancel()
        return branches.outcomes

    async def _settle(self, branches: Branches, settled: list[Branch], work: Awaitable[Any]) -> None:
        try:
            answer = await work
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            for branch in settled:
                branches.fail(branch, exc)
        except Exception as exc:
            for branch in settled:
                branches.fail(branch, exc)
        else:
            for branch in settled:
                branches.answer(branch, answer)

    async def _call(self, call: Call) -> Any:
        if call.timeout is not None:
            return await self._call_in_time(call)
        if call.is_async:
            return await self._await(call)
        if call.is_quick:
            return invoke(call)
        return await self._in_thread(call)

    async def _await(self, call: Call) -> Any:
        around = self.publish(call.announce) if call.announce is not None else ()
        if call.context is None:
            return await call.fn(*call.args)
        reset = current_context.set(call.context)
        try:
            if around:
                with surround(around, call.context.run_id):
                    return await call.fn(*call.args)
            return await call.fn(*call.args)
        except GeneratorExit as exc:
            if not self._is_awaited():
                raise  # the coroutine is being closed
            raise RuntimeError("user code raised GeneratorExit outside a generator") from exc
        finally:
            current_context.reset(reset)

    def _in_thread(self, call: Call) -> asyncio.Future[Any]:
        loop = self._loop
        future: asyncio.Future[Any] = loop.create_future()

        def settle(promise: Promise) -> None:
            if future.done():
                return
            try:
                future.set_result(promise.get())
            except StopIteration as exc:
                # A future does not take it.
                future.set_exception(RuntimeError(f"the node raised {exc!r}"))
            except BaseException as exc:
                future.set_exception(exc)

        def then(promise: Promise) -> None:
            try:
                loop.call_soon_threadsafe(settle, promise)
            except RuntimeError:
                return  # the loop was closed meanwhile: nobody is left to hear it

        threads.submit(self.bind(call), then)
        return future

    async def _call_in_time(self, call: Call) -> Any:
        assert call.timeout is not None
        task = asyncio.ensure_future(self._await(call) if call.is_async else self._in_thread(call))
        try:
            if await self._ends_within(task, call.timeout):
                return task.result()
            if call.is_async:
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
                    # Its own clean-up runs before anything else does.
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
        while (left := ends - self.clock.monotonic()) > 0 and not is_over(effect.held):
            await self.clock.sleep(left if effect.held is None else min(left, GLANCE))

    async def _store_call(self, effect: Ask | Write) -> Any:
        if not effect.store.is_blocking:
            if isinstance(effect, Write):
                return effect.store.append((effect.append,))[0]
            return getattr(effect.store, effect.method)(*effect.args, **effect.kwargs)
        future = lane_of(effect.store).submit(effect)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # A call that has begun is awaited to its end, however often the task is cancelled; then the cancel goes on.
            while not future.done():
                try:
                    await asyncio.wait({future})
                except asyncio.CancelledError:
                    continue
            if not future.cancelled():
                future.exception()
            raise

    async def stream(self, routine: Routine[Any]) -> AsyncIterator[Event]:
        """The events of `routine` as they come; breaking off stops it at a durable point."""
        events: deque[Event] = deque()
        self._wake = asyncio.Event()
        self.stream_to = self._streamed(events)
        try:
            effect = next(routine)
            while True:
                try:
                    if type(effect) is Call:
                        task = asyncio.ensure_future(self.perform(effect))
                        try:
                            while not task.done():
                                await self._told(task)
                                while events:
                                    yield events.popleft()
                        finally:
                            if not task.done():
                                task.cancel()
                                await asyncio.wait({task})
                        answer = task.result()
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
            # The error comes after the events that tell of it.
            while events:
                yield events.popleft()
            raise

    def _streamed(self, events: deque[Event]) -> Callable[[Event], None]:
        def tell(event: Event) -> None:
            events.append(event)
            if self._wake is not None:
                self._wake.set()

        return tell

    async def _told(self, task: asyncio.Future[Any]) -> None:
        """Wait until there is an event, or the call has ended."""
        assert self._wake is not None
        self._wake.clear()
        waiter = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()

    async def _abandon(self, routine: Routine[Any], pending: Effect) -> None:
        """Stop a routine that waits for `pending`; one that is leaving already is let go to its end."""
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
