"""The driver that blocks: effects are performed in the caller's thread."""

from __future__ import annotations

import contextvars
import functools
import heapq
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, TypeVar

from milepost.drivers.base import GLANCE, INSTANT, MAX_THREADS, Driver, StreamClosed, _put, held_of, is_awake, watched
from milepost.drivers.branches import Branch, Branches, merged
from milepost.drivers.threads import Pending, PendingSet, threads
from milepost.errors import AsyncNodeError, AttemptTimedOut
from milepost.executor.context import run_within
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
from milepost.model.events import Event, Hook
from milepost.model.ids import Clock

T = TypeVar("T")

STREAMED = 0.05
"""Seconds between two looks at a call while a stream waits for its events."""
_OVER = object()
"""A marker among the events of a stream: its run was lost or cancelled."""


class _Running:
    """A call of a branch in its thread, and the time since when its run is lost or cancelled."""

    __slots__ = ("call", "held", "over_since", "promise")

    def __init__(self, promise: Pending, call: Call) -> None:
        self.promise = promise
        self.call = call
        self.held = held_of(call)
        self.over_since: float | None = None


class SyncDriver(Driver):
    """A driver that performs effects in the caller's thread."""

    def __init__(self, clock: Clock, hooks: Sequence[Hook] = ()) -> None:
        super().__init__(clock, hooks)

    def live(self, event: Event) -> None:
        """Take an event from inside a running node, in whatever thread it runs."""
        self.publish(event)

    def run(self, routine: Routine[T]) -> T:
        """Drive `routine` to its end, and return its value."""
        value: Any = None
        send, perform = routine.send, self.perform
        step: Callable[[Any], Effect] = send
        while True:
            try:
                effect = step(value)
                try:
                    value, step = perform(effect), send
                except BaseException as exc:
                    value, step = exc, routine.throw
            except StopIteration as stop:
                result: T = stop.value
                return result
            except BaseException as exc:
                if getgeneratorstate(routine) == GEN_CLOSED:
                    raise
                # Ctrl-C came between two effects: it is thrown into the routine like any other error.
                value, step = exc, routine.throw

    def perform(self, effect: Effect) -> Any:
        """Return the answer of one effect, or raise its error."""
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
        steps = self._gathering(gather)
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                outcomes: dict[str, Outcome] = stop.value
                return outcomes

    def _gathering(self, gather: Gather) -> Generator[None, None, dict[str, Outcome]]:
        """Do the work of `_gather`, and yield now and then, so that a stream can give its events."""
        branches = Branches(gather, MAX_THREADS)
        sleeping: list[tuple[float, int, Branch, LeaseView | None]] = []
        ended: queue.SimpleQueue[tuple[Branch, Pending]] = queue.SimpleQueue()
        running: dict[Branch, _Running] = {}
        kept = PendingSet()
        try:
            yield from self._step_all(branches, sleeping, running, ended, kept)
        except GeneratorExit:
            for call in running.values():
                self._let_end(call.call, call.promise)
            raise
        except BaseException as end:
            kept.abandon()
            self.run(branches.ended_by(end))
            raise
        finally:
            kept.abandon()
        return branches.outcomes

    def _step_all(
        self,
        branches: Branches,
        sleeping: list[tuple[float, int, Branch, LeaseView | None]],
        running: dict[Branch, _Running],
        ended: queue.SimpleQueue[tuple[Branch, Pending]],
        kept: PendingSet,
    ) -> Iterator[None]:
        lonely: deque[Branch] = deque()
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
                elif isinstance(effect, Sleep):
                    wake = self.clock.monotonic() + effect.seconds
                    heapq.heappush(sleeping, (wake, id(branch), branch, effect.held))
                else:
                    self._answer(branches, branch, effect)
            if writes:
                self._write_together(branches, writes)
                continue
            if lonely:
                branches.answer(lonely.popleft(), None)
                continue
            for branch, call in branches.admitted():
                running[branch] = _Running(self._begun(call, functools.partial(_put, ended, branch), kept), call)
            if branches.is_over:
                break
            if not branches.is_ready:
                self._await_one(branches, sleeping, running, ended)
            yield

    def _begun(self, call: Call, then: Callable[[Pending], None], kept: PendingSet) -> Pending:
        """Begin a call of a branch elsewhere; it keeps its timeout."""
        if call.timeout is None:

            def over(promise: Pending) -> None:
                kept.discard(promise)
                then(promise)

            return self.submit(call, over, kept)
        return threads.submit(functools.partial(contextvars.copy_context().run, self._call, call, kept), then)

    def _answer(self, branches: Branches, branch: Branch, effect: Effect) -> None:
        try:
            branches.answer(branch, self.perform(effect))
        except Exception as exc:
            branches.fail(branch, exc)

    def _write_together(self, branches: Branches, writes: list[tuple[Branch, Write]]) -> None:
        """Write one append for each run, with the records of all its branches."""
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
        sleeping: list[tuple[float, int, Branch, LeaseView | None]],
        running: dict[Branch, _Running],
        ended: queue.SimpleQueue[tuple[Branch, Pending]],
    ) -> None:
        """Wait for the end of a call or of a sleep, or until a run that is lost or cancelled has waited long enough."""
        left = GLANCE if self.stream_to is None else STREAMED
        if sleeping:
            left = min(left, max(0.0, sleeping[0][0] - self.clock.monotonic()))
        try:
            branch, promise = ended.get(timeout=left)
        except queue.Empty:
            self._look(branches, sleeping, running)
            return
        # Other calls that have ended by now go on together with it, so that their records are one append.
        while True:
            call = running.get(branch)
            if call is not None and call.promise is promise:  # else it was left to its thread before
                del running[branch]
                branches.has_called(branch)
                try:
                    branches.answer(branch, promise.get())
                except Exception as exc:
                    branches.fail(branch, exc)
            if ended.empty():
                return
            branch, promise = ended.get()

    def _look(
        self,
        branches: Branches,
        sleeping: list[tuple[float, int, Branch, LeaseView | None]],
        running: dict[Branch, _Running],
    ) -> None:
        now = self.clock.monotonic()
        due = [entry for entry in sleeping if entry[0] <= now or is_awake(entry[3])]
        for entry in sorted(due):
            branches.answer(entry[2], None)
            sleeping.remove(entry)
        if due:
            heapq.heapify(sleeping)
        for branch, call in [*running.items()]:
            if call.held is None or not call.held.is_over:
                continue
            if call.over_since is None:
                call.over_since = now
                if call.promise.recall():
                    del running[branch]
                    branches.has_called(branch)
                    branches.fail(branch, HoldOver())
            elif now - call.over_since >= OVERDUE_GRACE:
                del running[branch]
                branches.has_called(branch)
                call.promise.abandon()
                branches.fail(branch, HoldOver())

    def _call(self, call: Call, kept: PendingSet | None = None) -> Any:
        if call.is_async:
            name = getattr(call.fn, "__qualname__", None) or type(call.fn).__qualname__
            raise AsyncNodeError(f"{name!r} is a coroutine function: await the verb's a-twin instead", names=(name,))
        if call.timeout is None and call.executor is None:
            around = self.publish(call.announce) if call.announce is not None else ()
            return run_within(call.context, call.fn, call.args, around)
        wake = threading.Event()
        own = PendingSet()
        if kept is not None:
            kept.add(own)
        try:
            promise = self.submit(call, lambda _: wake.set(), own)
            with watched(held_of(call), wake.set):
                if call.timeout is not None:
                    is_told = self.clock.wait(wake, call.timeout)
                else:
                    while not (is_told := wake.wait(GLANCE)):
                        continue
            if is_told:
                self._await_over(promise)
            elif not promise.recall():
                self.mark_overdue(call)
                self.clock.wait(promise.done, OVERDUE_GRACE)
        except BaseException:
            own.abandon()
            raise
        finally:
            if kept is not None:
                kept.discard(own)
        if is_told:
            return promise.get()
        assert call.timeout is not None
        is_running = not promise.is_done
        promise.abandon()
        raise AttemptTimedOut(call.timeout, is_running=is_running)

    def _await_over(self, promise: Pending) -> None:
        """Give the call of a run that is lost or cancelled some time to end; raise `HoldOver` if it does not."""
        if promise.is_done:
            return
        if promise.recall() or not self.clock.wait(promise.done, OVERDUE_GRACE):
            promise.abandon()
            raise HoldOver

    def _sleep(self, effect: Sleep) -> None:
        awake = threading.Event()
        ends = self.clock.monotonic() + effect.seconds
        with watched(effect.held, awake.set):
            while (left := ends - self.clock.monotonic()) > INSTANT and not is_awake(effect.held):
                self.clock.wait(awake, left if effect.held is None else min(left, GLANCE))

    def stream(self, routine: Routine[Any]) -> Iterator[Event]:
        """Iterate over the events of `routine` as they come; breaking off stops it at a durable point."""
        events: queue.SimpleQueue[Event | Pending] = queue.SimpleQueue()
        self.stream_to = events.put
        try:
            effect = next(routine)
            while True:
                try:
                    if isinstance(effect, Call) and not effect.is_quick:
                        answer = yield from self._call_live(effect, events)
                    elif isinstance(effect, Gather):
                        answer = yield from self._gather_live(effect, events)
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
            # The error comes after the events that report it.
            yield from _drain(events)
            raise

    def _gather_live(
        self, gather: Gather, events: queue.SimpleQueue[Any]
    ) -> Generator[Event, None, dict[str, Outcome]]:
        """Perform a gather, and yield its events meanwhile; return its outcomes."""
        steps = self._gathering(gather)
        try:
            while True:
                try:
                    next(steps)
                except StopIteration as stop:
                    outcomes: dict[str, Outcome] = stop.value
                    return outcomes
                yield from _drain(events)
        finally:
            steps.close()

    def _call_live(self, call: Call, events: queue.SimpleQueue[Any]) -> Generator[Event, None, Any]:
        """Run a call in a thread, and yield its events meanwhile; return its value."""
        kept = PendingSet()
        try:
            promise = self.submit(call, events.put, kept)
            with watched(held_of(call), functools.partial(events.put, _OVER)):
                return (yield from self._tell_until(promise, call, events))
        finally:
            kept.abandon()

    def _tell_until(self, promise: Pending, call: Call, events: queue.SimpleQueue[Any]) -> Generator[Event, None, Any]:
        began, allowed = self.clock.monotonic(), call.timeout
        while True:
            try:
                item = events.get(timeout=GLANCE if allowed is None else STREAMED)
            except queue.Empty:
                item = None
            if item is _OVER:
                self._await_over(promise)
                continue
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
            # A call with many events must not escape its timeout; one that has ended has kept it, however slow the
            # consumer is.
            if allowed is not None and not promise.is_done and self.clock.monotonic() - began >= allowed:
                assert call.timeout is not None
                if allowed > call.timeout:
                    promise.abandon()
                    raise AttemptTimedOut(call.timeout, is_running=True)
                if promise.recall():
                    raise AttemptTimedOut(call.timeout)
                allowed = call.timeout + OVERDUE_GRACE
                self.mark_overdue(call)

    def _let_end(self, call: Call, promise: Pending) -> None:
        """Wait for a call that nobody wants any more, so that it does not run beside a resume of its run."""
        if promise.recall():
            return
        if call.context is not None:
            call.context._stop = True
        if not self.clock.wait(promise.done, OVERDUE_GRACE):
            promise.abandon()

    def _abandon(self, routine: Routine[Any], pending: Effect) -> None:
        """Stop a routine that waits for `pending`. A routine that is ending already goes on to its end."""
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
        if isinstance(item, Event):
            yield item
