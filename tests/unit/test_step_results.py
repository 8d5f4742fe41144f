"""What steps and workflows give, as values."""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from milepost import (
    BranchResult,
    CheckpointData,
    ParallelResult,
    Reply,
    SkipMarker,
    StepError,
    StepResult,
    WorkflowResult,
)
from milepost.model.results import RollbackError, StepType, SubWorkflowInvocationResult, step_result
from milepost.testing.tables import for_each


def result(name: str = "a", **fields) -> StepResult:
    return StepResult(**{"name": name, "step_type": StepType.PYTHON, "success": True, **fields})


def failed(name: str = "b") -> StepResult:
    return result(name, success=False, error="no", error_type="ValueError", outcome="failed", attempts=2)


def of(*results: StepResult, **fields) -> WorkflowResult:
    told = {"workflow_name": "w", "success": True, "step_results": results, "total_duration_ms": 1.5, "run_id": "r"}
    return WorkflowResult(**{**told, **fields})


ALL = [
    SkipMarker("predicate_false"),
    result(),
    ParallelResult((result(),)),
    BranchResult(0, "a", 1),
    Reply(1, None),
    RollbackError("a", "no"),
    of(result()),
    SubWorkflowInvocationResult(1, of(result())),
]


@for_each("value", ALL)
def test_a_result_never_changes_and_can_be_told_as_a_dict(value):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, dataclasses.fields(value)[0].name, None)
    assert isinstance(value.to_dict(), dict)


def test_a_step_result_has_the_fields_that_code_reads():
    names = ["name", "step_type", "success", "output", "duration_ms", "error", "error_type", "outcome", "attempts"]
    assert names == [field.name for field in dataclasses.fields(StepResult)] == list(result().to_dict())
    assert ("succeeded", 1, None, 0.0) == (result().outcome, result().attempts, result().error, result().duration_ms)


def test_a_result_is_plain_json_whatever_a_step_gave():
    class Odd:
        def __repr__(self):
            raise ValueError("no")

    itself = []
    itself.append(itself)
    given = [StepType.MAP, (1, {2}), Decimal("1.5"), date(2026, 1, 1), math.nan, {(1,): b"x"}, SkipMarker("why"), Odd()]
    for value in (*given, given, itself, Reply(given, None), ParallelResult((result(output=given),))):
        told = result(output=value).to_dict()
        assert told == json.loads(json.dumps(told, allow_nan=False))
        assert str is type(told["step_type"])
    skipped = {"skipped": True, "reason": "why"}
    shown = ["map", [1, [2]], "1.5", "2026-01-01", "nan", {"[1]": "b'x'"}, skipped]
    assert shown == result(output=given).to_dict()["output"][:-1]
    CheckpointData("s", "w", "", (result(output=given).to_dict(),), datetime.now(UTC)).encode()


@pytest.mark.parametrize("error", [None, ""])
def test_a_failure_needs_an_error(error):
    with pytest.raises(ValueError, match="step 'a' failed, and its result has no error"):
        result(success=False, error=error)


def test_a_result_of_values_that_are_right_is_made_like_any_other():
    values = ("a", StepType.PYTHON, True, [1], 0.5, None, None, "succeeded", 2)
    made = step_result(*values)
    assert (StepResult, StepResult(*values)) == (type(made), made)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.name = "b"  # type: ignore[misc]


def test_a_duration_is_not_below_0():
    assert 0 == result(duration_ms=0).duration_ms
    with pytest.raises(ValueError, match="below 0"):
        result(duration_ms=-0.001)


def test_a_kind_is_text_too():
    kinds = ["python", "map", "subworkflow", "branch", "parallel", "wait", "timer"]
    assert kinds == [kind.value for kind in StepType]
    assert "python" == StepType.PYTHON == f"{StepType.PYTHON}"
    assert "later" == result(step_type="later").to_dict()["step_type"]


def test_a_skip_marker_is_falsy_and_tells_why():
    assert not SkipMarker("error_skipped")
    assert {"skipped": True, "reason": "error_skipped"} == SkipMarker("error_skipped").to_dict()


def test_a_parallel_result_is_a_sequence_in_the_given_order():
    told = ParallelResult((result("a", output=1), result("b", output=2)))
    assert (["a", "b"], 2, "b", "b") == ([one.name for one in told], len(told), told[1].name, told[-1].name)
    assert (1, 2) == (told.get_output("a"), told.get_output("b"))
    with pytest.raises(KeyError, match="c"):
        told.get_output("c")
    with pytest.raises(IndexError):
        told[2]


def test_a_parallel_result_is_a_success_when_no_step_failed():
    skipped = result("c", output=SkipMarker("error_skipped"), outcome="skipped")
    assert ParallelResult((result(), skipped)).success
    assert ParallelResult(()).success
    assert not ParallelResult((result(), failed())).success
    assert {"success": False, "child_results": [failed().to_dict()]} == ParallelResult((failed(),)).to_dict()


def test_a_branch_result_tells_what_was_chosen():
    told = BranchResult(1, "refund", ParallelResult(()))
    inner = {"success": True, "child_results": []}
    assert {"selected_index": 1, "selected_step_name": "refund", "inner_output": inner} == told.to_dict()


def test_a_reply_tells_when_it_was_sent():
    told = Reply({"ok": True}, datetime(2026, 1, 1, tzinfo=UTC)).to_dict()
    assert ({"ok": True}, "2026-01-01T00:00:00", False) == (told["payload"], told["sent_at"][:19], told["timed_out"])


def test_the_final_output_is_what_was_returned_or_that_of_the_last_step():
    steps = (result("a", output=1), result("b", output=2))
    assert (7, 7) == (of(*steps, output=7).output, of(*steps, output=7).final_output)
    assert (None, 2) == (of(*steps).output, of(*steps).final_output)
    assert (0, 0) == (of(*steps, output=0).output, of(*steps, output=0).final_output)
    assert None is of().final_output
    assert None is of(*steps, success=False).final_output


def test_unwrap_gives_the_output_or_raises_the_error():
    assert 2 == of(result(output=2)).unwrap()
    error = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        of(success=False, error=error, status="failed").unwrap()
    with pytest.raises(RuntimeError, match="'r' is waiting"):
        of(success=False, status="waiting").unwrap()


def test_the_failed_step_is_that_which_the_run_failed_at():
    ended = StepError("no", run_id="r", step_name="c")
    results = (failed("b"), result("x"), failed("c"), failed("d"))
    assert "c" == of(*results, success=False, error=ended).failed_step.name
    assert "d" == of(*results, success=False, error=ValueError("no")).failed_step.name
    assert None is of(result(), success=False, error=ValueError("no")).failed_step
    assert None is of(*results).failed_step


def test_rollback_failures_are_told():
    assert not of().had_rollback_failures
    told = of(success=False, rollback_errors=(RollbackError("a", "no"),))
    assert told.had_rollback_failures
    assert [{"step_name": "a", "error": "no"}] == list(told.to_dict()["rollback_errors"])


def test_a_workflow_result_as_a_dict_has_plain_values_all_the_way_down():
    inner = SubWorkflowInvocationResult(1, of(result(output=1), output=1))
    told = of(result("s", output=inner), output=inner, success=False, error=ValueError("no"), status="failed").to_dict()
    assert {"final_output": 1, "workflow_result": of(result(output=1), output=1).to_dict()} == told["output"]
    assert told["output"] == told["step_results"][0]["output"]
    assert ("w", False, "r", "failed") == (told["workflow_name"], told["success"], told["run_id"], told["status"])
    assert "no" in str(told["error"])
