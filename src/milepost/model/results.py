"""What steps and workflows of steps give: values that code, people and records can hold.

All are frozen. `output` is what the step's function returned, the very object in an undisturbed run and an equal one after
a resume. Durations are milliseconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, Literal, TypeVar

from milepost.model.reports import ResumeInfo, plain, plain_fields

__all__ = [
    "BranchResult",
    "Outcome",
    "ParallelResult",
    "Reply",
    "RollbackError",
    "SkipMarker",
    "StepResult",
    "StepType",
    "SubWorkflowInvocationResult",
    "WorkflowResult",
    "step_result",
]

R = TypeVar("R", covariant=True)
T = TypeVar("T", covariant=True)

Outcome = Literal["succeeded", "skipped", "recovered", "failed"]


class StepType(StrEnum):
    """What a step does. A record may name a kind that this release does not know: it stays text then."""

    PYTHON = "python"
    MAP = "map"
    SUBWORKFLOW = "subworkflow"
    BRANCH = "branch"
    PARALLEL = "parallel"
    WAIT = "wait"
    TIMER = "timer"


@dataclass(frozen=True, slots=True)
class SkipMarker:
    """The output of a step that was skipped; falsy.

    `reason` is predicate_false, predicate_exception or error_skipped.
    """

    reason: str

    def __bool__(self) -> bool:
        return False

    def to_dict(self) -> dict[str, Any]:
        """The marker as a dict of plain values."""
        return {"skipped": True, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class StepResult:
    """How a step ended.

    `error` is the text of what failed, `error_type` its qualified type; both are None for a step that succeeded.
    `attempts` counts all tries of the call. Raises ValueError for a failure without an error, and for a negative duration.
    """

    name: str
    step_type: StepType | str
    success: bool
    output: Any = None
    duration_ms: float = 0.0
    error: str | None = None
    error_type: str | None = None
    outcome: Outcome = "succeeded"
    attempts: int = 1

    def __post_init__(self) -> None:
        if not self.success and not self.error:
            raise ValueError(f"step {self.name!r} failed, and its result has no error: give error=")
        if self.duration_ms < 0:
            raise ValueError(f"duration_ms of step {self.name!r} is below 0: {self.duration_ms!r}")

    def to_dict(self) -> dict[str, Any]:
        """The result as a dict of plain JSON values."""
        return plain_fields(self)


_setters = [vars(StepResult)[f.name].__set__ for f in dataclasses.fields(StepResult)]
_set_name, _set_step_type, _set_success, _set_output, _set_duration_ms, *_setters = _setters
_set_error, _set_error_type, _set_outcome, _set_attempts = _setters


def step_result(
    name: str,
    step_type: StepType | str,
    success: bool,
    output: Any,
    duration_ms: float,
    error: str | None,
    error_type: str | None,
    outcome: Outcome,
    attempts: int,
) -> StepResult:
    """A `StepResult` of values that are known to be right, in a third of the time that its constructor takes."""
    result = StepResult.__new__(StepResult)
    _set_name(result, name)
    _set_step_type(result, step_type)
    _set_success(result, success)
    _set_output(result, output)
    _set_duration_ms(result, duration_ms)
    _set_error(result, error)
    _set_error_type(result, error_type)
    _set_outcome(result, outcome)
    _set_attempts(result, attempts)
    return result


@dataclass(frozen=True, slots=True)
class ParallelResult:
    """The results of steps that ran at once, in the order in which they were given."""

    child_results: tuple[StepResult, ...]

    @property
    def success(self) -> bool:
        """Whether none of them failed."""
        return all(result.success for result in self.child_results)

    def get_output(self, name: str) -> Any:
        """The output of the step of that name; KeyError if there is none."""
        for result in self.child_results:
            if result.name.rpartition("/")[2] == name or result.name == name:
                return result.output
        raise KeyError(name)

    def __getitem__(self, index: int) -> StepResult:
        return self.child_results[index]

    def __iter__(self) -> Iterator[StepResult]:
        return iter(self.child_results)

    def __len__(self) -> int:
        return len(self.child_results)

    def to_dict(self) -> dict[str, Any]:
        """The results as a dict of plain values."""
        return {"success": self.success, "child_results": [result.to_dict() for result in self.child_results]}


@dataclass(frozen=True, slots=True)
class BranchResult:
    """Which of a branch's steps was chosen, counted from 0, and what it gave."""

    selected_index: int
    selected_step_name: str
    inner_output: Any

    def to_dict(self) -> dict[str, Any]:
        """The result as a dict of plain values."""
        return plain_fields(self)


@dataclass(frozen=True, slots=True)
class Reply(Generic[T]):
    """What a wait ended with: a signal's `payload` and the time it was sent, or, `timed_out`, neither."""

    payload: T | None
    sent_at: datetime | None
    timed_out: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The reply as a dict of plain values."""
        return plain_fields(self)


@dataclass(frozen=True, slots=True)
class RollbackError:
    """A rollback that failed, or that the code does not have any more; `error` is its text."""

    step_name: str
    error: str

    def to_dict(self) -> dict[str, Any]:
        """The error as a dict of plain values."""
        return plain_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowResult(Generic[R]):
    """How a workflow ended.

    `output` is exactly what the workflow returned; `final_output` is the same or, where that is None, the output of its last
    step. `step_results` are those of the workflow's own steps in the order in which they ended; what is nested in a step is
    in its output. `status` is that of the run; `error` is what the run failed with, None unless it did.
    """

    workflow_name: str
    success: bool
    step_results: tuple[StepResult, ...]
    total_duration_ms: float
    output: R | None = None
    rollback_errors: tuple[RollbackError, ...] = ()
    run_id: str = ""
    status: str = "finished"
    error: BaseException | None = None
    degraded: bool = False
    missed: tuple[str, ...] = ()
    resumed: ResumeInfo | None = None
    waiting_for: tuple[Any, ...] = ()

    @property
    def final_output(self) -> Any:
        """What the workflow returned; where that is None, the output of its last step."""
        if self.output is None and self.success and self.step_results:
            return self.step_results[-1].output
        return self.output

    @property
    def failed_step(self) -> StepResult | None:
        """The step that the run failed at; None where it did not fail, or not at a step."""
        if self.success:
            return None
        name = getattr(self.error, "step_name", None)
        failed = [result for result in self.step_results if not result.success]
        if name is not None:
            failed = [result for result in failed if result.name == name] or failed
        return failed[-1] if failed else None

    @property
    def had_rollback_failures(self) -> bool:
        """Whether a rollback failed."""
        return bool(self.rollback_errors)

    def unwrap(self) -> Any:
        """`final_output`, or raise `error`. RuntimeError where the run has not ended."""
        if self.error is not None:
            raise self.error
        if not self.success:
            raise RuntimeError(f"run {self.run_id!r} is {self.status} and has no output yet: resume it")
        return self.final_output

    def to_dict(self) -> dict[str, Any]:
        """The result as a dict of plain values."""
        return {**plain_fields(self), "final_output": plain(self.final_output)}


@dataclass(frozen=True, slots=True)
class SubWorkflowInvocationResult(Generic[R]):
    """What a workflow (or graph) that ran as a step gave: its output, and its result as if it had run alone."""

    final_output: R
    workflow_result: Any = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The result as a dict of plain values."""
        return plain_fields(self)


plain.register(SkipMarker, SkipMarker.to_dict)
plain.register(ParallelResult, ParallelResult.to_dict)
plain.register(WorkflowResult, WorkflowResult.to_dict)
