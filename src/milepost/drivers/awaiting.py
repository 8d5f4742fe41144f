"""The driver that awaits: effects are performed in the caller's task, blocking ones in threads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from milepost.branches import Branch, Branches, merged
from milepost.clock import Clock
from milepost.context import current_context
from milepost.drivers.driver import GLANCE, Driver, StreamClosed, invoke, is_over
from milepost.effects import (
    OVERDUE_GRACE,
    Ask,
    AttemptTimedOut,
    Call,
    Drop,
    Effect,
    Gather,
    Outcome,
    Routine,
    Sleep,
    Write,
)
from milepost.events import Event
from milepost.hooks import Hook, surround
from milepost.lane import lane_of
from milepost.threads import Promise, threads

__all__ = ["AsyncDriver"]

T = TypeVar("T")


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
