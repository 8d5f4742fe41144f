"""The results of steps and of workflows of steps: values for code, people and records.

All are frozen. `output` is the return value of the step's function: the same object in an undisturbed run, and an equal
one after a resume. Durations are milliseconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from milepost.errors import shown
from milepost.model.reports import ResumeInfo, plain, plain_fields

R = TypeVar("R", covariant=True)
T = TypeVar("T", covariant=True)
if TYPE_CHECKING:
    import typing_extensions

    OutputT = typing_extensions.TypeVar("OutputT", covariant=True, default=Any)
else:
    OutputT = TypeVar("OutputT", covariant=True)

Outcome = Literal["succeeded", "skipped", "recovered", "failed"]


class StepType(StrEnum):
    """The kind of a step. If a record names a kind that this release does not know, it stays text."""

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
        """Return the marker as a dict of plain values."""
        return {"skipped": True, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class StepResult(Generic[OutputT]):
    """The result of a step, whose output is an OutputT: None for a failure.

    `error` is the error's text, `error_type` its qualified type; both are None for a step that succeeded.
    `attempts` counts all tries of the call. Raises ValueError for a failure without an error, and for a negative duration.
    """

    name: str
    step_type: StepType | str
    success: bool
    output: OutputT = None  # type: ignore[assignment]
    duration_ms: float = 0.0
    error: str | None = None
    error_type: str | None = None
    outcome: Outcome = "succeeded"
    attempts: int = 1

    def __post_init__(self) -> None:
        if not self.success and not self.error:
            raise ValueError(f"step {self.name!r} failed, and its result has no error: give error=")
        if self.duration_ms < 0:
            raise ValueError(f"duration_ms of step {self.name!r} is below 0: {shown(self.duration_ms)}")

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict of plain JSON values."""
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
    """Make a `StepResult` of values that need no check, in a third of the time that its constructor takes."""
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
        """True if none of the steps failed."""
        return all(result.success for result in self.child_results)

    def get_output(self, name: str) -> Any:
        """Return the output of the step called `name`; KeyError if there is none."""
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
        """Return the results as a dict of plain values."""
        return {"success": self.success, "child_results": [result.to_dict() for result in self.child_results]}


@dataclass(frozen=True, slots=True)
class BranchResult:
    """The chosen step of a branch (its index from 0, its name) and the output of that step."""

    selected_index: int
    selected_step_name: str
    inner_output: Any

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict of plain values."""
        return plain_fields(self)


@dataclass(frozen=True, slots=True)
class Reply(Generic[T]):
    """The end of a wait: a signal's `payload` and the time it was sent; both are None if the wait has `timed_out`."""

    payload: T | None
    sent_at: datetime | None
    timed_out: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the reply as a dict of plain values."""
        return plain_fields(self)


@dataclass(frozen=True, slots=True)
class RollbackError:
    """A rollback that failed, or that is no longer in the code; `error` is the error's text."""

    step_name: str
    error: str

    def to_dict(self) -> dict[str, Any]:
        """Return the error as a dict of plain values."""
        return plain_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowResult(Generic[R]):
    """The result of a workflow.

    `output` is exactly the workflow's return value; `final_output` is the same or, if that is None, the output of its
    last step. `step_results` has the results of the workflow's own steps in the order in which they ended; the output
    of a step has the results nested in it. `status` is the run's status; `error` is the error that the run failed with,
    else None.
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
        """The workflow's return value; if that is None and the workflow succeeded, the output of its last step."""
        if self.output is None and self.success and self.step_results:
            return self.step_results[-1].output
        return self.output

    @property
    def failed_step(self) -> StepResult | None:
        """The result of the step that the run failed at; None if it did not fail, or not at a step."""
        if self.success:
            return None
        name = getattr(self.error, "step_name", None)
        failed = [result for result in self.step_results if not result.success]
        if name is not None:
            failed = [result for result in failed if result.name == name] or failed
        return failed[-1] if failed else None

    @property
    def had_rollback_failures(self) -> bool:
        """True if a rollback failed."""
        return bool(self.rollback_errors)

    def unwrap(self) -> Any:
        """Return `final_output`, or raise `error` if there is one; RuntimeError if the run has not ended."""
        if self.error is not None:
            raise self.error
        if not self.success:
            raise RuntimeError(f"run {self.run_id!r} is {self.status} and has no output yet: resume it")
        return self.final_output

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict of plain values."""
        return {**plain_fields(self), "final_output": plain(self.final_output)}


@dataclass(frozen=True, slots=True)
class SubWorkflowInvocationResult(Generic[R]):
    """The result of a workflow (or graph) that ran as a step: its output, and its result as if it had run alone."""

    final_output: R
    workflow_result: Any = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict of plain values."""
        return plain_fields(self)


plain.register(SkipMarker, SkipMarker.to_dict)
plain.register(ParallelResult, ParallelResult.to_dict)
plain.register(WorkflowResult, WorkflowResult.to_dict)
