"""Reports about one run: the point and reason of a resume, and the result of a run of a graph."""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from enum import Enum
from functools import singledispatch
from math import isfinite
from pathlib import PurePath
from typing import Any, Generic, Literal, TypeVar
from uuid import UUID

StateT = TypeVar("StateT")


@singledispatch
def plain(value: Any) -> Any:
    """Turn `value` into plain JSON values for people and programs to read; it can't be read back.

    A value that has no form in JSON becomes the text that Python prints for it. A module registers its classes here if
    they have a `to_dict` of their own.
    """
    try:
        return _plain(value)
    except RecursionError:
        return f"<{type(value).__qualname__} that is nested too deeply>"


def plain_fields(value: Any) -> dict[str, Any]:
    """Return the public fields of a dataclass as plain values."""
    return {name: plain(getattr(value, name)) for name in _public_names(type(value))}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if isfinite(value) else str(value)
    if isinstance(value, BaseException):
        return _error_text(value)
    if isinstance(value, (date, time)):
        return value.isoformat()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain_fields(value)
    if isinstance(value, Mapping):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, Set, deque)):
        return [plain(item) for item in value]
    return _text(value)


def _key(key: Any) -> str:
    shown = plain(key)
    return shown if isinstance(shown, str) else json.dumps(shown)


def _text(value: Any) -> str:
    show = str if isinstance(value, (Decimal, UUID, PurePath)) else repr
    try:
        return show(value)
    except Exception as exc:
        return f"<{type(value).__qualname__} that cannot be shown: {type(exc).__qualname__}>"


def _error_text(error: BaseException) -> str:
    try:
        return f"{type(error).__qualname__}: {error}"
    except Exception as exc:
        return f"{type(error).__qualname__}: <its message cannot be shown: {type(exc).__qualname__}>"


class Report:
    """The methods that `dataclass` would write for each class of a report or an event, written once.

    Written for each of them, they are a tenth of the time that the first import of the library takes.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        values = (f"{name}={getattr(self, name)!r}" for name in _public_names(type(self)))
        return f"{type(self).__qualname__}({', '.join(values)})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _public_names(type(self)))

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in _public_names(type(self))))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict of plain values."""
        return plain_fields(self)


def _public_names(kind: type[Any]) -> list[str]:
    return [f.name for f in dataclasses.fields(kind) if not f.name.startswith("_")]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class ResumeInfo(Report):
    """The point at which a resume goes on, and the facts that it read from the record.

    `source` is start (nothing was recorded yet), latest, node (`resume_from`) or finished. `skipped` lists the nodes
    whose recorded work stays valid, `repeated` the node that was in flight and runs again, `missed` the visits that ran
    but whose checkpoint was never written. `differences` has a sentence for each change of the flow's code since the
    run began. `verified` is True if digest and seal were proven (records from outside have none). `superseded` says why
    the turn before does not count: it failed or was dropped; "" if no turn was superseded.
    """

    run_id: str
    source: Literal["start", "latest", "node", "finished"]
    from_node: str | None
    sequence: int
    visit: int
    next_node: str | None
    skipped: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    verified: bool = True
    already_completed: bool = False
    superseded: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class ResumePlan(ResumeInfo):
    """The plan of a resume: what it would do, and why. If `verdict` is refuse, `error` is the error it would raise."""

    verdict: Literal["continue", "finished", "waiting", "roll_back", "refuse"]
    reason: str
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class RunResult(Report, Generic[StateT]):
    """The result of a run of a graph: its state, status, and details."""

    state: StateT
    run_id: str
    status: str
    degraded: bool = False
    missed: tuple[str, ...] = ()
    iterations: int = 0
    resumed: ResumeInfo | None = None

    @property
    def output(self) -> StateT:
        """The state; a verb without `full=True` returns it directly."""
        return self.state
