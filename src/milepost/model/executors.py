"""The values that the option `executor=` accepts, which lets sync functions run outside the calling thread.

An executor is any `concurrent.futures.Executor`, or a function without arguments that makes one. A service should give
the function, because only the function can make a new pool after one has broken.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from inspect import iscoroutinefunction
from typing import Any

from milepost.errors import OptionError, shown

ExecutorLike = Executor | Callable[[], Executor]
"""An executor, or a factory of one. A class of executors is a factory too."""


def checked_executor(given: Any, whose: str, *, is_async: bool = False) -> ExecutorLike | None:
    """Return the value of `executor=` for `whose`; `OptionError` if it is no executor, or if the function is async."""
    if given is None:
        return None
    if not isinstance(given, Executor) and (not callable(given) or iscoroutinefunction(given)):
        text = f"executor of {whose} must be a concurrent.futures.Executor or a function that makes one, not {shown(given)}"
        raise OptionError(text, option="executor")
    if is_async:
        text = f"{whose} is a coroutine function, which runs in the event loop: give executor= to plain functions only"
        raise OptionError(text, option="executor")
    executor: ExecutorLike = given
    return executor
