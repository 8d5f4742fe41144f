"""Ends of user code that are no `Exception`, and which of them are errors of that code.

Nobody has asked for a `CancelledError` of a task that is not being cancelled, nor for a `GeneratorExit` where no generator
is closed: such an end is an error like any other, and a retry, a handler or a log takes it for one. Ctrl-C, `SystemExit` and
whatever else is no `Exception` keep their meaning.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["contained", "error_of", "is_cancellation"]

T = TypeVar("T")


def is_cancellation(end: BaseException) -> bool:
    """Return whether `end` is the `CancelledError` of asyncio, which is not imported for that."""
    asyncio = sys.modules.get("asyncio.exceptions")
    return asyncio is not None and isinstance(end, asyncio.CancelledError)


def error_of(end: BaseException) -> RuntimeError | None:
    """Make the error that `end` counts as, given that user code raised it by itself; None: it counts as what it is."""
    if isinstance(end, GeneratorExit):
        error = RuntimeError("user code raised GeneratorExit outside a generator")
    elif is_cancellation(end):
        told = f": {end}" if str(end) else ""
        error = RuntimeError(f"user code raised CancelledError, and nobody has cancelled its run{told}")
    else:
        return None
    error.__cause__ = end
    return error


def contained(fn: Callable[..., T], *args: Any) -> T:
    """Call user code that is plain; what it raises by itself comes out as an error where `error_of` makes one of it."""
    try:
        return fn(*args)
    except BaseException as end:
        error = error_of(end)
        if error is None:
            raise
        raise error from end
