"""Every error: what else it is, which facts it carries, and that it survives a copy and another process."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from milepost import errors
from milepost.errors import GraphProblem, MilepostError, MilepostInterrupt, interruption
from milepost.testing.tables import for_each

# Name: what it is besides, and an instance of it with its facts.
ERRORS: dict[str, tuple[tuple[type[Any], ...], MilepostError, dict[str, Any]]] = {}


def known(
    name: str, *also: type[Any] | str, args: tuple[Any, ...] = ("what happened",), facts: dict[str, Any] | None = None
) -> None:
    kinds = tuple(getattr(errors, kind) if isinstance(kind, str) else kind for kind in also)
    facts = facts or {}
    ERRORS[name] = (kinds, getattr(errors, name)(*args, **(facts if args == ("what happened",) else {})), facts)


PROBLEM = GraphProblem("entry_not_set", "", "no entry is set")

known("GraphError", ValueError, args=([PROBLEM],), facts={"problems": (PROBLEM,)})
known("AsyncNodeError", TypeError, facts={"names": ("a", "b")})
known("OptionError", ValueError, facts={"option": "lease"})
known("InvalidIDError", ValueError, facts={"value": ".."})
known("RunIDRequiredError", ValueError, "InvalidIDError", facts={"value": ""})
known("NodeError", facts={"op": "execute", "visit": 2, "attempt": 3, "state": {"n": 1}})
known("NodeTimeoutError", TimeoutError, "NodeError", facts={"timeout": 5.0})
known("RouterError", "NodeError", facts={"from_node": "a", "returned": "x"})
known("BranchError", "NodeError", facts={"fork": "a", "errors": {"b": "no"}})
known("MergeConflictError", ValueError, "NodeError", facts={"field": "total", "branches": ("a", "b")})
known("StateTypeError", TypeError, "NodeError", facts={"path": "state.n", "expected": "int", "found": "str"})
known("MaxIterationsError", RuntimeError, facts={"max": 10, "last_node_id": "a", "state": 1})
known("RunTimeoutError", TimeoutError, facts={"timeout": 5.0, "state": 1})
known("RunExistsError", ValueError, facts={"status": "finished"})
known("RunLockedError", facts={"owner": "host", "lease_until": None})
known("RunNotResumableError", ValueError, facts={"status": "cancelled", "reason": "enough"})
known("CheckpointNotFoundError", LookupError, args=("r", "a"), facts={"run_id": "r", "node_id": "a"})
known("NoCheckpointFoundError", LookupError, "CheckpointNotFoundError", args=("r",), facts={"run_id": "r"})
known(
    "RunNotFoundError",
    LookupError,
    "NoCheckpointFoundError",
    args=("r", "memory"),
    facts={"run_id": "r", "store": "memory", "node_id": None},
)
known("InvalidResumeNodeError", ValueError, facts={"node_id": "x", "known": ("a",)})
known("ResumeNodeCompletedError", ValueError, facts={"node_id": "a"})
known("StateValidationError", ValueError, facts={"state": 1})
known(
    "InputMismatchError",
    ValueError,
    args=("a" * 64, "b" * 64),
    facts={"expected_hash": "a" * 64, "actual_hash": "b" * 64, "names": ()},
)
known("FlowChangedError", ValueError, facts={"differences": ("node a is gone",)})
known("WrongFlowError", ValueError, "FlowChangedError", facts={"expected": "orders", "found": "bills"})
known("NonDeterminismError", ValueError, "FlowChangedError", facts={"index": 3, "recorded": "a", "found": "b"})
known("SerializeStateError", ValueError, TypeError, facts={"path": "state.due", "type_name": "Lock"})
known("StateTooLargeError", ValueError, "SerializeStateError", facts={"size": 10, "limit": 5})
known("DeserializeStateError", ValueError, facts={"path": "state.n", "expected": "int", "found": "str"})
known("CheckpointCorruptError", ValueError, "DeserializeStateError", facts={"sequence": 3})
known("CheckpointIntegrityError", ValueError, "CheckpointCorruptError", facts={"expected": "x", "found": "y"})
known("CheckpointVersionError", ValueError, "DeserializeStateError", facts={"found": 2, "supported": 1})
known("CheckpointMigrationError", ValueError, "DeserializeStateError", facts={"found": "no next_node"})
known("StoreError", OSError, facts={"store": "memory", "op": "append"})
known("CheckpointWriteError", OSError, "StoreError", facts={"run_id": "r", "node_id": "a"})
known("StatementError", facts={"sql": "INSERT"})
known("StoreVersionError", OSError, "StoreError", facts={"found": 2, "supported": 1})
known("StoreClosedError", ValueError)
known("NotAuthorizedError", PermissionError, facts={"action": "resume", "run_id": "r"})
known("MissingExtraError", ImportError, facts={"extra": "postgres"})
known("WorkflowError", args=("no stock",), facts={"reason": "no stock"})
known("WorkflowHeldError", "WorkflowError", args=("no stock",), facts={"reason": "no stock"})
known("StepError", facts={"step_name": "a", "step_type": "python", "attempt": 2})
known("NoBranchMatchedError", LookupError, "StepError")
known("PredicateTypeError", TypeError, "StepError", facts={"returned": 1})
known("DuplicateStepNameError", ValueError, facts={"step_name": "a"})
known("ResultNotReadyError", RuntimeError)
known("LeaseLost", facts={"epoch": 2})
known("RunSuspended", facts={"waiting_for": ("w",), "wake_at": None})
known("RunCancelled", facts={"reason": "enough"})
known("SignalRefusedError", ValueError, facts={"wait_id": "a#1"})
known("RunStopped", facts={"node_id": "a", "state": 1})

NOT_RAISED = {"MilepostError", "GraphProblem"}
each = for_each("name", ERRORS)


def test_every_error_is_in_this_table() -> None:
    assert set(errors.__all__) - NOT_RAISED == set(ERRORS)


@each
def test_an_error_is_also_what_callers_expect(name: str) -> None:
    kinds, error, _ = ERRORS[name]
    for kind in (MilepostError, *kinds):
        assert isinstance(error, kind)


@each
def test_an_error_is_no_built_in_beyond_those(name: str) -> None:
    kinds, error, _ = ERRORS[name]
    ours = tuple(kind for kind in kinds if kind.__module__ != "builtins")
    built_in = {kind for kind in kinds if kind not in ours}
    for other in (ValueError, TypeError, LookupError, OSError, RuntimeError, ImportError, TimeoutError):
        if isinstance(error, other):
            assert any(issubclass(kind, other) for kind in (*built_in, *ours))


@each
def test_the_facts_are_attributes(name: str) -> None:
    _, error, facts = ERRORS[name]
    assert facts == {fact: getattr(error, fact) for fact in facts}


@each
def test_facts_that_were_not_given_have_a_default(name: str) -> None:
    kind = getattr(errors, name)
    _, given, facts = ERRORS[name]
    if given.args == ("what happened",):
        error = kind("what happened")
        assert "what happened" == str(error)
        for fact in facts:
            # What an error refers to by `found` may be anything, so it has a default only where it has one type.
            if not (fact == "found" and isinstance(error, errors.DeserializeStateError)):
                getattr(error, fact)
    assert all(hasattr(given, fact) for fact in ("run_id", "node_id", "state"))


def through_a_pickle(error: MilepostError) -> MilepostError:
    return pickle.loads(pickle.dumps(error))  # type: ignore[no-any-return]


@each
@for_each("duplicate", [copy.copy, copy.deepcopy, through_a_pickle])
def test_an_error_survives_a_copy(name: str, duplicate: Any) -> None:
    _, error, facts = ERRORS[name]
    found = duplicate(error)
    assert found is not error
    assert (type(error), error.args, str(error)) == (type(found), found.args, str(found))
    assert facts == {fact: getattr(found, fact) for fact in facts}


def test_notes_survive_a_copy() -> None:
    error = errors.NodeError("no", run_id="r")
    error.add_note("attempt 1: no")
    assert ["attempt 1: no"] == copy.copy(error).__notes__


@each
def test_ids_go_by_the_names_of_step_workflows_too(name: str) -> None:
    error = copy.copy(ERRORS[name][1])
    error.run_id, error.node_id = "r-1", "pay"
    assert ("r-1", "pay") == (error.workflow_id, error.checkpoint_id)


def test_one_problem_is_the_message_and_several_are_listed() -> None:
    other = GraphProblem("unknown_target", "a", "node 'a' leads to 'x', which is no node")
    assert "no entry is set" == str(errors.GraphError([PROBLEM]))
    error = errors.GraphError([PROBLEM, other])
    assert ("2 problems in the graph:\n  - no entry is set\n  - node 'a' leads to 'x', which is no node") == str(error)
    assert (("entry_not_set", ""), "unknown_target", "a") == (
        (error.problems[0].code, error.problems[0].where),
        error.problems[1].code,
        error.problems[1].where,
    )
    assert other.text == str(other)


def test_what_was_not_found_is_named() -> None:
    assert "no checkpoint found for run 'r'" == str(errors.CheckpointNotFoundError("r"))
    assert "no checkpoint found for run 'r' at node 'a': no visit 2" == str(
        errors.CheckpointNotFoundError("r", "a", "no visit 2")
    )
    named = errors.CheckpointNotFoundError(workflow_id="r", checkpoint_id="a")
    assert ("no checkpoint found for run 'r' at node 'a'", "r", "a") == (str(named), named.run_id, named.node_id)
    assert "r" == errors.NoCheckpointFoundError(workflow_id="r").workflow_id
    assert "r" == errors.RunNotFoundError(workflow_id="r").run_id
    assert "sqlite:////x.db" in str(errors.RunNotFoundError("r", "sqlite:////x.db"))


def test_both_hashes_are_in_the_message_with_sixteen_digits() -> None:
    text = str(errors.InputMismatchError("a" * 64, "b" * 64, "'n' differs", names=("n",)))
    assert "'" + "a" * 16 + "'" in text
    assert "'" + "b" * 16 + "'" in text
    assert text.endswith("; 'n' differs")


@pytest.mark.parametrize("name", ["LeaseLost", "RunSuspended", "RunCancelled"])
def test_what_user_code_must_not_swallow_is_no_exception(name: str) -> None:
    error = ERRORS[name][1]
    thrown = interruption(error)
    assert isinstance(thrown, MilepostInterrupt)
    assert not isinstance(thrown, Exception)
    assert (name, error, str(error)) == (type(thrown).__name__, thrown.error, str(thrown))
    found = pickle.loads(pickle.dumps(thrown))
    assert (type(thrown), error.args, vars(error)) == (type(found), found.error.args, vars(found.error))
    assert type(thrown).__name__ not in {kind for kind in vars(errors) if vars(errors)[kind] is type(thrown)}
