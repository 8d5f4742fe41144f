"""Exceptions of user code with a meaning for Python, and the rule which of them are errors of that code.

A `CancelledError` is an error like any other if nobody cancels the task, and so are a `GeneratorExit` where no
generator is closed and a `StopIteration`: retries, handlers and logs see a `RuntimeError`. Ctrl-C, `SystemExit` and all
else that is no `Exception` keep their meaning.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["contained", "error_of", "is_cancellation"]

T = TypeVar("T")


def is_cancellation(end: BaseException) -> bool:
    """Return whether `end` is the `CancelledError` of asyncio, without importing asyncio."""
    asyncio = sys.modules.get("asyncio.exceptions")
    return asyncio is not None and isinstance(end, asyncio.CancelledError)


def error_of(end: BaseException) -> RuntimeError | None:
    """Make the error that stands for an `end` that user code raised by itself; None if `end` keeps its own meaning."""
    if isinstance(end, GeneratorExit):
        error = RuntimeError("user code raised GeneratorExit outside a generator")
    elif isinstance(end, StopIteration):
        # Python itself turns one that leaves a coroutine or a generator into a RuntimeError, so every driver does.
        error = RuntimeError("user code raised StopIteration outside an iterator")
    elif is_cancellation(end):
        told = f": {end}" if str(end) else ""
        error = RuntimeError(f"user code raised CancelledError, and nobody has cancelled its run{told}")
    else:
        return None
    error.__cause__ = end
    return error


def contained(fn: Callable[..., T], *args: Any) -> T:
    """Call a plain function of a user. Where `error_of` makes an error of what it raises, raise that error instead."""
    try:
        return fn(*args)
    except BaseException as end:
        error = error_of(end)
        if error is None:
            raise
        raise error from end
