"""The places where the functions of a flow are defined."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from milepost.checking.report import Source
from milepost.graph.declarations import body_of

_NOT_THE_USERS = sys.stdlib_module_names | {"milepost"}


def function_of(fn: Callable[..., Any]) -> Any:
    """Return the function that a call runs in the end: that of a partial, a decorator, a method or a callable object."""
    body = inspect.unwrap(body_of(fn))
    while body is not fn:
        fn, body = body, inspect.unwrap(body_of(body))
    return getattr(body, "__func__", body)


def module_of(fn: Any) -> str:
    """Return the name of the module that a function is of; "" if it is not known."""
    owner = getattr(fn, "__objclass__", fn)  # a method that is written in C knows its class alone
    return str(getattr(owner, "__module__", None) or "")


def is_the_users(fn: Any) -> bool:
    """Return whether a function is neither of this library nor of Python's."""
    return module_of(fn).partition(".")[0] not in _NOT_THE_USERS


def place_of(fn: Callable[..., Any]) -> Source | None:
    """Return the file and the first line of a function; None for one that is not the user's or not written in Python."""
    fn = function_of(fn)
    code = getattr(fn, "__code__", None)
    if code is None or not is_the_users(fn):
        return None
    return Source(shown_path(code.co_filename), code.co_firstlineno)


def shown_path(path: str) -> str:
    """Return the path of a source file, from the working directory if it is below it."""
    return os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else path
