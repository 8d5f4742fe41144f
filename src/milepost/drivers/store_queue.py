"""One store call in flight per store: how event loops reach a blocking store without blocking.

Each store has one lane: a daemon thread and what waits for it. When the thread is free it takes everything that waits,
hands all appends over in one `append(batch)` so that they share a commit (those with statements one by one, for each has a
commit of its own), and performs the other calls one by one. A
run has at most one request in a lane at a time, so the order between requests does not matter. Answers go back with one
wake-up per event loop and round.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import weakref
from typing import Any

from milepost.executor.effects import Ask, Effect, Write
from milepost.store import Store

__all__ = ["Answer", "Lane", "lane_of"]

IDLE = 10.0
"""Seconds after which a lane without work ends its thread."""


class Answer(asyncio.Future[Any]):
    """What a store will say. A task that is cancelled while it waits for this goes on waiting, and is cancelled then.

    So a write that has begun has ended before anybody hears of the cancel. `asyncio.shield` would need three futures for it.
    """

    def cancel(self, msg: Any | None = None) -> bool:
        return False


Request = tuple[Effect, asyncio.AbstractEventLoop, Answer]
Settled = tuple[Answer, Any, BaseException | None]


class Lane:
    """The way of event loops to one store."""

    def __init__(self) -> None:
        # It does not know the store, which each request names: an idle lane keeps no store that its user has dropped.
        self._waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_running = False

    def submit(self, effect: Effect) -> Answer:
        """Hand over an `Ask` or a `Write`."""
        loop = asyncio.get_running_loop()
        answer = Answer(loop=loop)
        self._waiting.put((effect, loop, answer))
        if not self._is_running:
            with self._lock:
                if not self._is_running:
                    self._is_running = True
                    threading.Thread(target=self._run, name="milepost-lane", daemon=True).start()
        return answer

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
            self._perform(requests)
            del requests

    def _perform(self, requests: list[Request]) -> None:
        writes = [request for request in requests if type(request[0]) is Write]
        answers: dict[asyncio.AbstractEventLoop, list[Settled]] = {}
        for together in _batches(writes):
            store = together[0][0].store  # type: ignore[attr-defined]
            try:
                verdicts: list[Any] = store.append([write.append for write, _, _ in together])  # type: ignore[attr-defined]
            except BaseException as exc:
                for _, loop, future in together:
                    answers.setdefault(loop, []).append((future, None, exc))
            else:
                for (_, loop, future), verdict in zip(together, verdicts, strict=True):
                    answers.setdefault(loop, []).append((future, verdict, None))
        for effect, loop, future in requests:
            if type(effect) is Ask:
                try:
                    value = getattr(effect.store, effect.method)(*effect.args, **effect.kwargs)
                except BaseException as exc:
                    answers.setdefault(loop, []).append((future, None, exc))
                else:
                    answers.setdefault(loop, []).append((future, value, None))
        for loop, settled in answers.items():
            try:
                loop.call_soon_threadsafe(_settle, settled)
            except RuntimeError:
                # The loop was closed meanwhile: nobody is left to hear the answer.
                continue


def _batches(writes: list[Request]) -> list[list[Request]]:
    """All that may share a commit in one batch, and each append with statements in one of its own."""
    if not writes:
        return []
    alone = [write for write in writes if write[0].append.statements]  # type: ignore[attr-defined]
    if not alone:
        return [writes]
    shared = [write for write in writes if not write[0].append.statements]  # type: ignore[attr-defined]
    return [*([shared] if shared else []), *([write] for write in alone)]


def _settle(answers: list[Settled]) -> None:
    for future, value, error in answers:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)


_lanes: weakref.WeakKeyDictionary[Store, Lane] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def lane_of(store: Store) -> Lane:
    """The lane of a store; the same for all event loops of the process."""
    lane = _lanes.get(store)
    if lane is None:
        with _lock:
            lane = _lanes.setdefault(store, Lane())
    return lane


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _lanes.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
