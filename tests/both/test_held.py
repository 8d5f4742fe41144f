"""Bugs in a workflow's own code: they hold the run, which goes on once the code is mended."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from milepost import (
    Engine,
    RunCancelled,
    RunNotResumableError,
    RunSuspended,
    StepError,
    Steps,
    WorkflowContext,
    WorkflowError,
    parallel,
    step,
    workflow,
)
from milepost.errors import WorkflowHeldError
from milepost.events import RunBlocked, WorkflowCompleted


def make(log: list[str], code: Any, **options: Any) -> Any:
    """A workflow that does a step, then what `code` does, then another step."""

    @workflow("w", **options)
    def wf(ctx: WorkflowContext[Any]) -> Steps[str]:
        yield step("a").python(log.append, args=("a",)).with_rollback(lambda ctx: log.append("undo a"))
        yield from code(ctx)
        yield step("b").python(log.append, args=("b",))
        return "end"

    return wf


def fine(ctx: Any) -> Any:
    yield from ()


def raising(error: BaseException) -> Any:
    def code(ctx: Any) -> Any:
        yield from ()
        raise error

    return code


def asking(make_asked: Any) -> Any:
    def code(ctx: Any) -> Any:
        yield make_asked()

    return code


BUGS = {
    "type": raising(TypeError("no")),
    "attribute": raising(AttributeError("no")),
    "name": raising(NameError("no")),
    "import": raising(ImportError("no")),
    "key": raising(KeyError("no")),
    "assertion": raising(AssertionError("no")),
    "not implemented": raising(NotImplementedError("no")),
    "no step": asking(lambda: 1),
    "no kind": asking(lambda: step("c")),
    "twice": asking(lambda: step("a").python(int)),
    "no name": asking(lambda: step("")),
    "bad retry": asking(lambda: step("c").retry(0).python(int)),
}


@pytest.mark.every_store
@pytest.mark.parametrize("bug", ["type", "twice"])
def test_a_bug_holds_the_run_until_the_code_is_mended(verbs, store, log, bug):
    with pytest.raises(WorkflowHeldError, match="mend the code, then resume") as caught:
        verbs.run(make(log, BUGS[bug]), store=store, run_id="r")
    assert caught.value.__cause__ is not None
    info = store.get_run("r").info
    assert ("blocked", "bug", ["a"]) == (info.status, info.blocked_by, log)
    assert info.reason == str(caught.value)
    assert ("", True) == (info.error.node_id, "Traceback" in info.error.traceback)
    assert info.error.error_type == store.list_runs()[0].error.error_type
    (held,) = (record.fields() for record in store.read("r") if record.kind == "failure")
    assert (True, True) == (held["held"], "Traceback" in held["traceback"])
    assert "end" == verbs.resume(make(log, fine), store, "r")
    assert (["a", "b"], None) == (log, store.get_run("r").info.blocked_by)
    assert store.verify("r").ok


@pytest.mark.parametrize("bug", [*BUGS])
def test_what_is_a_bug(verbs, store, log, bug):
    with pytest.raises(WorkflowHeldError):
        verbs.run(make(log, BUGS[bug]), store=store, run_id="r")
    assert "blocked" == store.get_run("r").info.status


async def endless() -> None:
    await asyncio.Event().wait()


@workflow("impatient")
async def impatient() -> None:
    async with asyncio.timeout(0):
        await step("c").python(endless)


@pytest.mark.parametrize(
    ("seconds", "asked"),
    [
        (0, lambda: step("c").python(endless)),
        (None, lambda: step("c").subworkflow(impatient).as_result()),
        (None, lambda: parallel("c", step("d").subworkflow(impatient), step("e").python(endless)).as_result()),
    ],
    ids=["step", "inside", "at once"],
)
def test_asyncio_timeout_around_a_step_is_a_bug(store, seconds, asked):
    @workflow("w")
    async def wf():
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asked()

    async def run() -> int:
        with pytest.raises(
            WorkflowHeldError, match=r"asyncio\.timeout\(\).*: say \.timeout\(seconds\) at the step instead"
        ):
            await wf.arun(store=store, run_id="r")
        return asyncio.current_task().cancelling()

    assert 0 == asyncio.run(run())
    assert "bug" == store.get_run("r").info.blocked_by


def test_asyncio_timeout_around_a_step_fails_a_workflow_that_nothing_holds(store):
    @workflow("w", hold_on=())
    async def wf():
        async with asyncio.timeout(0):
            await step("c").python(endless)

    with pytest.raises(WorkflowError, match=r"say \.timeout\(seconds\) at the step instead$"):
        asyncio.run(wf.arun(store=store, run_id="r"))
    assert "failed" == store.get_run("r").info.status


def test_asyncio_timeout_around_a_run_interrupts_it(store):
    @workflow("w")
    async def wf():
        async with asyncio.timeout(3600):
            await step("c").python(endless)

    async def run() -> None:
        async with asyncio.timeout(0):
            await wf.arun(store=store, run_id="r")

    with pytest.raises(TimeoutError):
        asyncio.run(run())
    assert "interrupted" == store.get_run("r").info.status


def test_a_group_of_errors_is_a_bug_if_each_of_them_is_one(verbs, store, log):
    bugs, mixed = [TypeError("no"), KeyError("no")], [TypeError("no"), ValueError("no")]
    with pytest.raises(WorkflowHeldError):
        verbs.run(make(log, raising(ExceptionGroup("all", bugs))), store=store, run_id="r")
    with pytest.raises(WorkflowError, match="failed: ExceptionGroup: some"):
        verbs.run(make(log, raising(ExceptionGroup("some", mixed))), store=store, run_id="r2")
    assert ["blocked", "failed"] == [store.get_run(run_id).info.status for run_id in ("r", "r2")]


@pytest.mark.parametrize(
    "code",
    [
        raising(ValueError("no")),
        raising(WorkflowError("enough")),
        raising(type("Mixed", (WorkflowError, KeyError), {})("no")),
        asking(lambda: step("c").python(lambda: {}["x"])),
        asking(lambda: step("c").when(lambda ctx: {}["x"]).python(int).as_result()),
    ],
)
def test_what_is_no_bug(verbs, store, log, code):
    with suppress(WorkflowError, StepError):
        verbs.run(make(log, code), store=store, run_id="r")
    assert (store.get_run("r").info.status, log) in [("failed", ["a", "undo a"]), ("finished", ["a", "b"])]


def test_an_error_that_the_code_raises_from_the_failure_of_a_step_is_its_own(verbs, store, log):
    def code(ctx: Any) -> Any:
        try:
            yield step("c").python(lambda: 1 / 0)
        except StepError as exc:
            raise KeyError("no such order") from exc

    with pytest.raises(WorkflowError, match="no such order") as caught:
        verbs.run(make(log, code), store=store, run_id="r")
    assert not isinstance(caught.value, WorkflowHeldError)
    assert "failed" == store.get_run("r").info.status


def test_errors_that_are_the_causes_of_each_other_end_the_code_like_others(verbs, store, log):
    first, second = KeyError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    with pytest.raises(WorkflowHeldError):
        verbs.run(make(log, raising(first)), store=store, run_id="r")
    with pytest.raises(WorkflowError, match="ValueError: b"):
        verbs.run(make(log, raising(second)), store=store, run_id="r2")


@pytest.mark.parametrize("hold_on", [(), (ValueError,)])
def test_a_workflow_says_what_holds_it(verbs, store, log, hold_on):
    error = ValueError("no") if hold_on else KeyError("no")
    with pytest.raises(WorkflowError) as caught:
        verbs.run(make(log, raising(error), hold_on=hold_on), store=store, run_id="r")
    assert bool(hold_on) == isinstance(caught.value, WorkflowHeldError)


@pytest.mark.parametrize("hold_on", [[KeyError], (int,), KeyError, (BaseException,)])
def test_what_cannot_hold_is_refused(hold_on):
    with pytest.raises(TypeError, match="hold_on"):
        workflow("w", hold_on=hold_on)


def test_without_a_store_nothing_is_held(verbs, log):
    with pytest.raises(WorkflowError) as caught:
        verbs.run(make(log, BUGS["key"]))
    assert not isinstance(caught.value, WorkflowHeldError)
    assert ["a", "undo a"] == log


def test_a_bug_inside_another_workflow_holds_the_whole_run_past_all_that_handles_failures(verbs, store, log):
    def make_outer(code: Any) -> Any:
        @workflow("inner")
        def inner(ctx: WorkflowContext[Any]) -> Steps[int]:
            yield from code(ctx)
            return 1

        @workflow("w")
        def wf() -> Steps[str]:
            try:
                told = yield parallel(
                    "p",
                    step("sub").subworkflow(inner, {}).on_error(lambda ctx, f: step("other").python(int)).as_result(),
                    step("beside").python(log.append, args=("beside",)),
                )
            except Exception:
                log.append("caught")
                raise
            return str(told[0].output.final_output)

        return wf

    with pytest.raises(WorkflowHeldError):
        verbs.run(make_outer(BUGS["key"]), store=store, run_id="r")
    assert (["beside"], "blocked") == (log, store.get_run("r").info.status)
    assert "1" == verbs.resume(make_outer(fine), store, "r")
    assert ["beside"] == log


def test_a_bug_that_a_replay_meets_holds_too_and_a_plan_says_so(verbs, store, log):
    wait = asking(lambda: step("wait").wait_for("go"))
    with pytest.raises(RunSuspended):
        verbs.run(make(log, wait), store=store, run_id="r")
    store.put_signal("r", "go", b"1")
    bad = make(log, BUGS["type"])
    plan = verbs.plan(bad, store, "r")
    assert ("refuse", True) == (plan.verdict, "has a bug" in plan.reason), plan
    with pytest.raises(WorkflowHeldError):
        verbs.resume(bad, store, "r")
    assert "bug" == store.get_run("r").info.blocked_by
    newest = store.get_run("r").info.sequence
    with pytest.raises(RunNotResumableError, match="still has the bug"):
        verbs.resume(bad, store, "r")
    assert newest == store.get_run("r").info.sequence
    assert "end" == verbs.resume(make(log, wait), store, "r")
    assert ["a", "b"] == log


def test_a_run_that_is_held_is_told_as_blocked(verbs, store, log):
    events: list[Any] = []
    with pytest.raises(WorkflowHeldError):
        verbs.run(make(log, BUGS["key"]), store=store, run_id="r", hooks=[events.append])
    assert isinstance(events[-1], RunBlocked)
    assert not any(isinstance(event, WorkflowCompleted) for event in events)
    with Engine(store, flows=[make(log, fine)]) as engine:
        told = list(engine.handle("r").events())
        assert isinstance(told[-1], RunBlocked)
        assert "KeyError" in told[-1].reason


def test_a_cancel_undoes_what_a_held_run_has_done(verbs, store, log):
    bad = make(log, BUGS["key"])
    with pytest.raises(WorkflowHeldError):
        verbs.run(bad, store=store, run_id="r")
    store.request_cancel("r", "not wanted", None)
    with pytest.raises(RunCancelled):
        verbs.resume(bad, store, "r")
    assert (["a", "undo a"], "cancelled") == (log, store.get_run("r").info.status)


def test_orders_that_wait_for_approval_survive_a_deploy_with_a_bug(verbs, store, log):
    wait = asking(lambda: step("wait").wait_for("go"))

    def wait_and_fail(ctx: Any) -> Any:
        yield from wait(ctx)
        raise TypeError("a bug")

    good, bad = make(log, wait), make(log, wait_and_fail)
    for number in range(20):
        with pytest.raises(RunSuspended):
            verbs.run(good, store=store, run_id=f"o-{number}")
    for number in range(20):
        store.put_signal(f"o-{number}", "go", b"1")
    with Engine(store, flows=[bad]) as engine:
        engine.worker().run(until_idle=True)
    assert {("blocked", "bug")} == {(info.status, info.blocked_by) for info in store.list_runs()}
    assert "undo a" not in log
    for number in range(20):
        assert "end" == verbs.resume(good, store, f"o-{number}")
