"""What verbs tell of a run: where a resume goes on, and how a run of a graph ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

__all__ = ["ResumeInfo", "ResumePlan", "RunResult", "plain"]

StateT = TypeVar("StateT")


def plain(value: Any) -> Any:
    """`value` made of what JSON has, as far as that is possible without inventing anything."""
    if isinstance(value, BaseException):
        return _error_text(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if not f.name.startswith("_")}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _error_text(error: BaseException) -> str:
    try:
        return f"{type(error).__qualname__}: {error}"
    except Exception as exc:
        return f"{type(error).__qualname__}: <its message cannot be shown: {type(exc).__qualname__}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeInfo:
    """Where a resume goes on, and what it found.

    `source` is start (nothing was recorded yet), latest, node (`resume_from`) or finished. `skipped` are the nodes
    whose recorded work stands, `repeated` the node that was in flight and runs again, `missed` the visits that ran
    but whose checkpoint was never written. `differences` tell how the flow's code has changed since the run began,
    `verified` whether digest and seal were proven (records from outside have none).
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

    def to_dict(self) -> dict[str, Any]:
        """The same as a dict of plain values."""
        return dict(plain(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePlan(ResumeInfo):
    """What a resume would do and why. `error` is what it would raise, if `verdict` is refuse."""

    verdict: Literal["continue", "finished", "waiting", "roll_back", "refuse"]
    reason: str
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Generic[StateT]):
    """How a run ended: its state and what a caller may want to know besides."""

    state: StateT
    run_id: str
    status: str
    degraded: bool = False
    missed: tuple[str, ...] = ()
    iterations: int = 0
    resumed: ResumeInfo | None = None

    @property
    def output(self) -> StateT:
        """The state, which is what a verb gives without `full=True`."""
        return self.state

    def to_dict(self) -> dict[str, Any]:
        """The same as a dict of plain values; the state as it is."""
        return {
            f.name: self.state if f.name == "state" else plain(getattr(self, f.name)) for f in dataclasses.fields(self)
        }
