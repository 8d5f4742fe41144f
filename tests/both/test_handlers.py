"""Workflows that catch the failure of a step: what they see, what is recorded, and what a resume tries again."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

import pytest

from milepost import (
    NoCheckpointFoundError,
    RunNotResumableError,
    RunSuspended,
    StepError,
    Steps,
    WorkflowContext,
    WorkflowError,
    branch,
    parallel,
    step,
    workflow,
)
from milepost.errors import NonDeterminismError, SerializeStateError
from milepost.events import StepCompleted


class Refused(ConnectionError):
    """An error of a user's own."""


class Bank:
    """The world outside, which fails as often as it is told to."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.failing: dict[str, int] = {}

    def call(self, name: str, value: int = 1) -> int:
        self.log.append(name)
        if self.failing.get(name, 0):
            self.failing[name] -= 1
            raise Refused(f"{name} was refused")
        return value


@pytest.fixture
def bank() -> Bank:
    return Bank()


def called(bank: Bank, name: str) -> Any:
    return step(name).python(bank.call, args=(name,))


def make_order(bank: Bank, is_async: bool = False) -> Any:
    pay, invoice, tidy = (called(bank, name) for name in ("pay", "invoice", "tidy"))

    @workflow("order")
    def yields() -> Steps[str]:
        yield called(bank, "reserve").with_rollback(lambda ctx: bank.log.append("undo reserve"))
        try:
            yield pay.retry(3, backoff=0.001)
        except StepError as exc:
            if not exc.matches(ConnectionError):
                raise
            yield invoice
            return "invoiced"
        finally:
            yield tidy
        return "paid"

    @workflow("order")
    async def awaits() -> str:
        await called(bank, "reserve").with_rollback(lambda ctx: bank.log.append("undo reserve"))
        try:
            await pay.retry(3, backoff=0.001)
        except StepError as exc:
            if not exc.matches(ConnectionError):
                raise
            await invoice
            return "invoiced"
        finally:
            await tidy
        return "paid"

    return awaits if is_async else yields


@pytest.mark.every_store
@pytest.mark.parametrize("is_async", [False, True])
def test_a_failure_that_is_caught_does_not_end_the_run(verbs, store, bank, is_async):
    bank.failing["pay"] = 3
    wf = make_order(bank, is_async)
    told = verbs.run(wf, store=store, run_id="r", full=True)
    assert ("invoiced", True) == (told.output, told.success)
    assert ["reserve", "pay", "pay", "pay", "invoice", "tidy"] == bank.log
    assert [("reserve", "succeeded"), ("pay", "failed"), ("invoice", "succeeded"), ("tidy", "succeeded")] == [
        (result.name, result.outcome) for result in told.step_results
    ]
    again = verbs.resume(wf, store, "r", full=True)
    assert ([(r.name, r.outcome, r.error, r.error_type) for r in told.step_results], 6) == (
        [(r.name, r.outcome, r.error, r.error_type) for r in again.step_results],
        len(bank.log),
    )


def test_the_end_of_a_caught_step_is_announced_once(verbs, store, bank):
    bank.failing["pay"] = 3
    ends = [
        (event.step_name, event.success)
        for event in verbs.stream(make_order(bank), store=store, run_id="r")
        if isinstance(event, StepCompleted)
    ]
    assert [("reserve", True), ("pay", False), ("invoice", True), ("tidy", True)] == ends


def test_a_failure_that_is_not_caught_ends_the_run_and_undoes_it(verbs, store, bank):
    bank.failing = {"pay": 3, "invoice": 1}
    with pytest.raises(StepError, match=r"'invoice'.*except StepError"):
        verbs.run(make_order(bank), store=store, run_id="r")
    assert ["invoice", "tidy", "undo reserve"] == bank.log[4:]
    assert "failed" == store.get_run("r").info.status


@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_only_what_ended_the_run_is_tried_again(verbs, store, bank, verb):
    @workflow("w")
    def wf():
        try:
            yield called(bank, "a")
        except StepError:
            yield called(bank, "b")
        try:
            yield called(bank, "c")
        finally:
            yield called(bank, "d")
        return "end"

    bank.failing = {"a": 9, "c": 1}
    with pytest.raises(StepError, match="'c'"):
        verbs.run(wf, store=store, run_id="r")
    assert ["a", "b", "c", "d"] == bank.log
    assert "end" == getattr(verbs, verb)(wf, store, "r")
    assert ["c", "d"] == bank.log[4:]
    assert "end" == verbs.resume(wf, store, "r")


def test_a_step_that_used_up_its_attempts_before_its_error_left_the_code_needs_retry(verbs, store, bank):
    @workflow("w")
    def wf():
        try:
            yield called(bank, "a").retry(2, backoff=0.001)
        finally:
            yield called(bank, "b")

    bank.failing["a"] = 2
    with pytest.raises(StepError):
        verbs.run(wf, store=store, run_id="r")
    with pytest.raises(RunNotResumableError, match="retry"):
        verbs.resume(wf, store, "r")
    verbs.retry(wf, store, "r")
    assert ["a", "a", "b", "a", "b"] == bank.log


@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_an_error_of_the_code_that_a_failed_step_caused_is_tried_again_from_that_step(verbs, store, bank, verb):
    @workflow("w")
    def wf():
        try:
            yield called(bank, "a")
        except StepError as exc:
            yield called(bank, "b")
            raise WorkflowError("not payable") from exc
        return "end"

    bank.failing["a"] = 1
    with pytest.raises(WorkflowError, match="not payable"):
        verbs.run(wf, store=store, run_id="r")
    assert "end" == getattr(verbs, verb)(wf, store, "r")
    assert ["a", "b", "a"] == bank.log


def test_an_error_of_the_code_alone_is_retried_from_the_newest_failure_that_it_was_given(verbs, store, bank):
    @workflow("w")
    def wf():
        failed = False
        try:
            yield called(bank, "a")
        except StepError:
            failed = True
        yield called(bank, "b")
        if failed:
            raise WorkflowError("enough")
        return "end"

    bank.failing["a"] = 1
    with pytest.raises(WorkflowError, match="enough"):
        verbs.run(wf, store=store, run_id="r")
    with pytest.raises(WorkflowError, match="enough"):
        verbs.resume(wf, store, "r")
    assert ["a", "b"] == bank.log
    assert "end" == verbs.retry(wf, store, "r")
    assert ["a", "b", "a", "b"] == bank.log


# -- what the handler sees


def describe(exc: StepError) -> list[Any]:
    return [
        type(exc).__name__, str(exc), *exc.args, exc.step_name, exc.step_type, exc.error_type, exc.message, exc.attempt,
        exc.matches(Refused), exc.matches("ConnectionError"), exc.matches(ValueError, KeyError), [*exc.error_bases],
    ]  # fmt: skip


def failing_steps(bank: Bank) -> dict[str, Any]:
    @workflow("inner")
    def inner() -> Steps[int]:
        yield called(bank, "x")
        return 1

    @workflow("own")
    def own() -> Steps[int]:
        yield step("first").python(int)
        raise Refused("of its own")

    x = called(bank, "x")
    return {
        "call": x,
        "retried": x.retry(2, backoff=0.001),
        "long": step("long").python(lambda: (_ for _ in ()).throw(Refused("no " * 2000))),
        "silent": step("silent").python(lambda: (_ for _ in ()).throw(Refused)),
        "group": parallel("group", x, called(bank, "y")).must_succeed(),
        "map": step("map").map(bank.call, ["x", "y"]),
        "branch": branch("branch", (lambda ctx: True, x)),
        "no branch": branch("branch", (lambda ctx: False, x)),
        "predicate": x.when(lambda ctx: 1),
        "inner": step("inner").subworkflow(inner, {}),
        "own error": step("inner").subworkflow(own, {}),
        "doubly": x.on_error(lambda ctx, failed: called(bank, "z")),
    }


@pytest.mark.parametrize("kind", [*failing_steps(Bank())])
def test_a_handler_sees_the_same_error_live_and_on_replay(verbs, store, bank, kind):
    failing, seen = failing_steps(bank)[kind], []

    @workflow("w")
    def wf(ctx: WorkflowContext[Any]):
        try:
            yield failing
        except StepError as exc:
            seen.append([describe(exc), ctx.now(), ctx.results.get(failing.name)])
            # What is given to another step is compared on a replay.
            yield step("tell").python(len, args=(repr([describe(exc), ctx.now()]),))
            yield step("wait").wait_for("go")

    bank.failing = {"x": 2, "z": 1}
    with pytest.raises(RunSuspended):
        verbs.run(wf, store=store, run_id="r")
    calls = len(bank.log)
    store.put_signal("r", "go", b"1")
    verbs.resume(wf, store, "r")
    assert (seen[0], calls) == (seen[-1], len(bank.log))
    described = seen[0][0]
    assert (kind not in {"no branch", "predicate"}) == described[8], described
    assert len(described[1]) <= 500 >= len(described[6])


def test_a_class_is_matched_by_its_name_when_it_is_gone(verbs, store, bank):
    bank.failing["pay"] = 1
    matched = []

    @workflow("w")
    def wf():
        try:
            yield called(bank, "pay")
        except StepError as exc:
            matched.append([exc.matches(f"{__name__}.Refused"), exc.matches("shop.Gone"), exc.matches()])

    verbs.run(wf, store=store)
    assert [[True, False, False]] == matched


def test_the_original_error_is_there_only_while_it_is_live(verbs, store, bank):
    bank.failing["pay"] = 1
    seen = []

    @workflow("w")
    def wf():
        try:
            yield called(bank, "pay")
        except StepError as exc:
            seen.append((exc.error, exc.__cause__))
            yield step("wait").wait_for("go")

    with pytest.raises(RunSuspended):
        verbs.run(wf, store=store, run_id="r")
    store.put_signal("r", "go", b"1")
    verbs.resume(wf, store, "r")
    assert isinstance(seen[0][0], Refused)
    assert seen[0][0] is seen[0][1]
    assert (None, None) == seen[-1]


def test_a_failure_is_not_thrown_again_for_another_call(verbs, store, bank):
    amount = [1]

    @workflow("w")
    def wf():
        try:
            yield step("pay").python(bank.call, args=("pay", amount[0]))
        except StepError:
            yield step("wait").wait_for("go")

    bank.failing["pay"] = 1
    with pytest.raises(RunSuspended):
        verbs.run(wf, store=store, run_id="r")
    store.put_signal("r", "go", b"1")
    amount[0] = 2
    with pytest.raises(NonDeterminismError, match="'pay'"):
        verbs.resume(wf, store, "r")
    assert ["pay"] == bank.log


@pytest.mark.parametrize("handling", ["caught", "as_result"])
@pytest.mark.parametrize("kind", ["group", "branch", "branch of a branch", "on_error", "on_error of an on_error"])
def test_the_steps_of_a_group_that_failed_are_undone_when_the_run_fails_later(verbs, store, bank, kind, handling):
    undoable = called(bank, "x").with_rollback(lambda ctx: bank.log.append("undo x"))
    failing = parallel("group", undoable, called(bank, "y")).must_succeed()
    for number in range({"group": 0, "branch": 1, "on_error": 1}.get(kind, 2)):
        if "branch" in kind:
            failing = branch(f"branch-{number}", (lambda ctx: True, failing))
        else:
            failing = called(bank, f"u{number}").on_error(lambda ctx, failed, given=failing: given)
    failing = failing.as_result() if handling == "as_result" else failing

    @workflow("w")
    def wf():
        with suppress(StepError):
            yield failing
        yield step("wait").wait_for("go")
        yield called(bank, "z")

    bank.failing = {"y": 9, "z": 9, "u0": 9, "u1": 9}
    with pytest.raises(RunSuspended):
        verbs.run(wf, store=store, run_id="r")
    store.put_signal("r", "go", b"1")
    with pytest.raises(StepError, match="'z'"):
        verbs.resume(wf, store, "r")
    assert "undo x" == bank.log[-1]


# -- inside others


@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_a_workflow_inside_catches_for_itself(verbs, store, bank, verb):
    @workflow("inner")
    def inner() -> Steps[str]:
        yield called(bank, "i").with_rollback(lambda ctx: bank.log.append("undo i"))
        try:
            yield called(bank, "a")
        except StepError:
            yield called(bank, "b")
        yield called(bank, "c")
        return "inner"

    @workflow("w")
    def wf() -> Steps[Any]:
        told = yield parallel("p", step("sub").subworkflow(inner, {}), called(bank, "other"))
        yield called(bank, "z")
        return told[0].output.final_output

    bank.failing = {"a": 9, "z": 1}
    with pytest.raises(StepError, match="'z'"):
        verbs.run(wf, store=store, run_id="r")
    assert "undo i" in bank.log
    bank.log.clear()
    assert "inner" == getattr(verbs, verb)(wf, store, "r")
    assert "z" == bank.log[-1]


def test_a_retry_goes_down_to_the_step_whose_failure_left_the_code_inside(verbs, store, bank):
    @workflow("innermost")
    def innermost() -> Steps[int]:
        try:
            yield called(bank, "a")
        except StepError:
            yield called(bank, "b")
        try:
            yield called(bank, "c")
        finally:
            yield called(bank, "d")
        return 1

    @workflow("inner")
    def inner() -> Steps[int]:
        try:
            yield step("deep").subworkflow(innermost, {})
        finally:
            yield called(bank, "e")
        return 2

    @workflow("w")
    def wf() -> Steps[int]:
        return (yield step("sub").subworkflow(inner, {})).final_output

    bank.failing = {"a": 9, "c": 2}
    with pytest.raises(StepError):
        verbs.run(wf, store=store, run_id="r")
    assert ["a", "b", "c", "d", "e"] == bank.log
    for _ in range(2):
        bank.log.clear()
        try:
            assert 2 == verbs.retry(wf, store, "r")
        except StepError:
            assert ["c", "d", "e"] == bank.log
    assert ["c", "d", "e"] == bank.log
    assert 2 == verbs.resume(wf, store, "r")


def test_attempts_of_a_workflow_inside_try_again_only_what_failed_it(verbs, store, bank):
    @workflow("inner")
    def inner() -> Steps[int]:
        try:
            yield called(bank, "a")
        except StepError:
            yield called(bank, "b")
        yield called(bank, "c")
        return 1

    @workflow("w")
    def wf() -> Steps[int]:
        return (yield step("sub").retry(3, backoff=0.001).subworkflow(inner, {})).final_output

    bank.failing = {"a": 9, "c": 2}
    assert 1 == verbs.run(wf, store=store, run_id="r")
    assert ["a", "b", "c", "c", "c"] == bank.log


# -- what is not thrown


def test_an_output_that_cannot_be_recorded_is_not_thrown(verbs, store, log):
    @workflow("w")
    def wf():
        try:
            yield step("a").python(lambda: object())
        except Exception:
            log.append("caught")

    with pytest.raises(SerializeStateError):
        verbs.run(wf, store=store)
    assert [] == log


def test_a_step_that_is_asked_for_while_the_code_is_closed_is_not_done(verbs, store, log, caplog):
    @workflow("w")
    def inner():
        try:
            yield step("wait").wait_for("go")
        finally:
            yield step("late").python(log.append, args=("late",))
            yield step("later").python(log.append, args=("later",))

    @workflow("w")
    def wf():
        try:
            yield from inner.fn()
        finally:
            log.append("closed")
            yield step("last").python(log.append, args=("last",))

    caplog.set_level(logging.WARNING)
    with pytest.raises(RunSuspended) as caught:
        verbs.run(wf, store=store, run_id="r")
    assert (["closed"], []) == (log, getattr(caught.value, "__notes__", []))
    assert ["wait"] == [record.node_id for record in store.read("r") if record.node_id]
    store.put_signal("r", "go", b"1")
    verbs.resume(wf, store, "r")
    assert ["closed", "late", "later", "closed", "last"] == log


def test_resume_from_inside_a_handler_leaves_the_failure_caught(verbs, store, bank):
    bank.failing["pay"] = 9
    wf = make_order(bank)
    verbs.run(wf, store=store, run_id="r")
    bank.log.clear()
    assert "invoiced" == verbs.resume_from(wf, store, "r", "invoice", rerun=True)
    assert ["invoice", "tidy"] == bank.log
    with pytest.raises(NoCheckpointFoundError):
        verbs.resume_from(wf, store, "r", "pay")


def test_without_a_store_a_failure_is_caught_as_well(verbs, bank):
    bank.failing["pay"] = 3
    assert "invoiced" == verbs.run(make_order(bank))
