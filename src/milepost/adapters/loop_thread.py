"""An event loop in a daemon thread of its own, for coroutines whose results blocking code waits for."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable
from concurrent.futures import Future
from typing import Any, TypeVar

from milepost.stores.base.process_fork import watch

__all__ = ["LoopThread"]

T = TypeVar("T")

Serving = tuple[asyncio.AbstractEventLoop, asyncio.Event]


class LoopThread:
    """A thread with an event loop. It begins with the first call and ends with this object. A
    fork's child begins its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._serving: Serving | None = None
        watch(self)

    def wait(self, awaitable: Awaitable[T]) -> T:
        """Await `awaitable` in the loop and return its result."""

        async def awaited() -> T:
            return await awaitable

        with self._lock:
            if self._serving is None:
                self._serving = self._begin()
            loop = self._serving[0]
        return asyncio.run_coroutine_threadsafe(awaited(), loop).result()

    def _begin(self) -> Serving:
        begun: Future[Serving] = Future()
        threading.Thread(target=_serve, args=(begun,), name="milepost-loop", daemon=True).start()
        serving = begun.result()
        # The thread ends by itself when the interpreter exits.
        weakref.finalize(self, _end, *serving).atexit = False
        return serving

    def _before_fork(self) -> None:
        self._lock.acquire()

    def _after_fork(self, is_child: bool) -> None:
        if is_child:
            self._lock = threading.Lock()
            # Its thread does not exist in this process, so the loop can be neither used nor closed.
            _inherited.append(self._serving)
            self._serving = None
        else:
            self._lock.release()


def _serve(begun: Future[Serving]) -> None:
    async def serve() -> None:
        stop = asyncio.Event()
        begun.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()

    asyncio.run(serve())


def _end(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(stop.set)


_inherited: list[Any] = []
