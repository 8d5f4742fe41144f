"""The driver that blocks: effects are performed in the caller's thread."""

from __future__ import annotations

import functools
import heapq
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, TypeVar

from milepost.branches import Branch, Branches, merged
from milepost.drivers.driver import GLANCE, MAX_THREADS, Driver, StreamClosed, _put, invoke, is_over
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
from milepost.threads import Promise, threads

__all__ = ["SyncDriver"]

T = TypeVar("T")


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
