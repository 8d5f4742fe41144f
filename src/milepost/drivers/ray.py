"""An executor over Ray, for `executor=`. Needs the extra `ray`; nothing of Ray is imported before one is made."""

from __future__ import annotations

import importlib
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for
from typing import Any, TypeVar

from milepost.errors import MissingExtraError

T = TypeVar("T")


class RayExecutor(Executor):
    """An executor that runs each call as a Ray task, on the cluster that `ray.init` has connected to.

    `options` are those of a Ray task: `RayExecutor(num_gpus=1, resources={"big": 1})`. `max_retries` is 0 unless you
    say otherwise: a worker that dies is a failed attempt, which the retry policy of the node handles. A future that is
    cancelled cancels its task. A shutdown of the executor leaves Ray alone.

    Raises `MissingExtraError` if Ray is not installed.
    """

    def __init__(self, **options: Any) -> None:
        try:
            self._ray = importlib.import_module("ray")
        except ImportError as exc:
            raise MissingExtraError(
                f"RayExecutor needs the package ray ({exc}): pip install 'milepost[ray]'", extra="ray"
            ) from exc
        self._task = self._ray.remote(_call).options(**{"max_retries": 0, **options})
        self._lock = threading.Lock()
        self._pending: weakref.WeakSet[Future[Any]] = weakref.WeakSet()
        self._is_shut = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run `fn(*args, **kwargs)` on the cluster. Raises RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        with self._lock:
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            reference = self._task.remote(fn, args, kwargs)
            self._pending.add(future)
        future.add_done_callback(lambda done: self._ray.cancel(reference) if done.cancelled() else None)
        reference.future().add_done_callback(lambda done: _settle(future, done))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls, and wait for those that run if `wait`. With `cancel_futures` cancel them first."""
        with self._lock:
            self._is_shut = True
            pending = [*self._pending]
        if cancel_futures:
            for future in pending:
                future.cancel()
        if wait:
            wait_for(pending)


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)


def _settle(future: Future[Any], done: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    error = done.exception()
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())
