"""The queue of a store, with one store call in flight: event loops reach a blocking store through it without blocking.

Each store has one queue: a daemon thread and the requests that wait for it. When the thread is free it takes all
waiting requests. It hands all appends over in one `append(batch)` so that they share a commit (those with statements
one by one, for each has a commit of its own), and performs the other calls one by one. A run has at most one request in
a queue at a time, so the order between requests does not matter. Answers go back with one wake-up per event loop and
round.

A store that does not answer blocks its queue's thread and all requests that wait for it. Tasks that must end all the
same give up their answers.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
import weakref
from collections.abc import Collection
from typing import Any

from milepost.errors import StoreError
from milepost.executor.effects import Ask, Effect, Write
from milepost.store import Store

__all__ = ["Answer", "StoreQueue", "lane_of"]

IDLE = 10.0
"""Seconds after which a queue without work ends its thread."""
PROMPT = 1.0
"""Seconds within which a store answers those who can't wait for it."""


class Answer(asyncio.Future[Any]):
    """The future answer of a store. A task that is cancelled meanwhile waits for it all the same, and is cancelled then.

    So a write that has begun has ended before anybody hears of the cancel. `asyncio.shield` would need three futures
    for it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.task = asyncio.current_task(loop)

    def cancel(self, msg: Any | None = None) -> bool:
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
            if answer.task in tasks and not answer.done():
                self._open.discard(answer)
                answer.set_exception(StoreError("the store did not answer in time: look at the way to it", op="wait"))

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
            self._perform([request for request in requests if not request[2].done()])
            self._busy_since = None
            del requests

    def _perform(self, requests: list[Request]) -> None:
        writes = [request for request in requests if type(request[0]) is Write]
        answers: dict[asyncio.AbstractEventLoop, list[Settled]] = {}
        batches = _batches(writes)
        for together in batches:
            store = together[0][0].store  # type: ignore[attr-defined]
            self._busy_since = time.monotonic()
            try:
                verdicts: list[Any] = store.append([write.append for write, _, _ in together])  # type: ignore[attr-defined]
            except BaseException as exc:
                if len(together) > 1 and isinstance(exc, StoreError) and exc.is_of_one_run:
                    batches += [[write] for write in together]  # nothing was written: only the bad one fails alone
                    continue
                for _, loop, future in together:
                    answers.setdefault(loop, []).append((future, None, exc))
            else:
                for (_, loop, future), verdict in zip(together, verdicts, strict=True):
                    answers.setdefault(loop, []).append((future, verdict, None))
        for effect, loop, future in requests:
            if type(effect) is Ask:
                self._busy_since = time.monotonic()
                try:
                    value = getattr(effect.store, effect.method)(*effect.args, **effect.kwargs)
                except BaseException as exc:
                    answers.setdefault(loop, []).append((future, None, exc))
                else:
                    answers.setdefault(loop, []).append((future, value, None))
        for loop, settled in answers.items():
            try:
                loop.call_soon_threadsafe(self._settle, settled)
            except RuntimeError:
                # The loop was closed meanwhile: nobody is left to hear the answer.
                self._open.difference_update(answer for answer, _, _ in settled)

    def _settle(self, answers: list[Settled]) -> None:
        for answer, value, error in answers:
            self._open.discard(answer)
            if answer.done():  # given up
                continue
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(value)


def _batches(writes: list[Request]) -> list[list[Request]]:
    """Return batches: one of all appends that may share a commit, and one for each append with statements."""
    if not writes:
        return []
    alone = [write for write in writes if write[0].append.statements]  # type: ignore[attr-defined]
    if not alone:
        return [writes]
    shared = [write for write in writes if not write[0].append.statements]  # type: ignore[attr-defined]
    return [*([shared] if shared else []), *([write] for write in alone)]


_lanes: weakref.WeakKeyDictionary[Store, StoreQueue] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def lane_of(store: Store) -> StoreQueue:
    """Return the queue of a store; it is the same for all event loops of the process."""
    lane = _lanes.get(store)
    if lane is None:
        with _lock:
            lane = _lanes.setdefault(store, StoreQueue())
    return lane


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _lanes.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
