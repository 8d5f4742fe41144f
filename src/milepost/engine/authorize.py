"""Permission to act on a run: an engine asks its `authorize` before it acts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import isasyncgenfunction, iscoroutinefunction, isroutine
from typing import Any

from milepost.errors import NotAuthorizedError, OptionError, shown

Authorize = Callable[[str, str, str], Any]
"""The type of `authorize`, which gets (action, run_id, flow name) before a resume, override, requeue, signal, cancel or
delete.

Only True lets the action pass: any other answer, such as None of a forgotten `return`, and an exception refuse it. An
async function is no `authorize`, since nobody awaits it.
"""


class Gate:
    """An engine's `authorize`, or None, which lets everything pass.

    Raises `OptionError` for a value that cannot be asked.
    """

    __slots__ = ("_authorize",)

    def __init__(self, authorize: Authorize | None) -> None:
        if authorize is not None and (not callable(authorize) or _is_async(authorize)):
            text = f"authorize must be a plain function of (action, run_id, flow), not {shown(authorize)}: nobody awaits it"
            raise OptionError(text, option="authorize")
        self._authorize = authorize

    @property
    def is_guarded(self) -> bool:
        """True if there is an `authorize` to ask."""
        return self._authorize is not None

    def ask(self, action: str, run_id: str, flow: str) -> None:
        """Raise `NotAuthorizedError` unless the action is allowed."""
        if self._authorize is None:
            return
        cause: Exception | None = None
        try:
            answer = self._authorize(action, run_id, flow)
        except Exception as exc:
            answer, cause = False, exc
        if answer is not True:
            raise NotAuthorizedError(
                f"{action} of run {run_id!r} is not allowed: the engine's authorize refused it",
                action=action,
                run_id=run_id,
            ) from cause


def _is_async(authorize: Callable[..., Any]) -> bool:
    """Return whether a call gives something to be awaited: of a function, a method, an object, or a partial of one."""
    while isinstance(authorize, partial):
        authorize = authorize.func
    function = authorize if isroutine(authorize) else type(authorize).__call__
    return iscoroutinefunction(function) or isasyncgenfunction(function)
