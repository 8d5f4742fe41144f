"""How workflows end: by a return, by a failed step, by an error of their own; and what they may not do then."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from milepost import (
    MilepostError,
    StepError,
    Steps,
    WorkflowContext,
    WorkflowEngine,
    WorkflowError,
    branch,
    parallel,
    step,
    workflow,
)
from milepost.events import StepCompleted, StepStarted, WorkflowCompleted, WorkflowStarted


def fail(n: int = 1) -> None:
    raise ValueError(f"no {n}")


def status(store: Any) -> str:
    return str(store.get_run("r").info.status)


@pytest.mark.parametrize("output", [None, 0, "", [], False, {"a": [1]}])
def test_a_verb_gives_exactly_what_the_workflow_returned(verbs, store, output):
    @workflow("w")
    def wf():
        yield step("a").python(lambda: 5)
        return output

    assert output == verbs.run(wf, store=store, run_id="r")
    assert output == verbs.resume(wf, store, "r")
    told = verbs.run(wf, store=store, run_id="r2", full=True)
    assert (output, 5 if output is None else output) == (told.output, told.final_output)


@pytest.mark.every_store
def test_an_early_return_completes_it(verbs, store, log):
    @workflow("w")
    def wf():
        yield step("a").python(int)
        return "early"
        yield step("b").python(log.append, args=("b",))

    assert ("early", [], "finished") == (verbs.run(wf, store=store, run_id="r"), log, status(store))


@pytest.mark.parametrize("is_async", [True, False])
def test_a_workflow_without_a_step_is_one_too(verbs, store, is_async):
    @workflow("w")
    async def awaits() -> int:
        return 1

    @workflow("w")
    def yields() -> Steps[int]:
        return 1
        yield

    wf = awaits if is_async else yields
    assert (1, 1) == (verbs.run(wf, store=store, run_id="r"), verbs.resume(wf, store, "r"))


def test_a_failed_step_ends_the_workflow_with_a_step_error(verbs, store, log):
    @workflow("w")
    def wf():
        yield step("a").python(fail)
        yield step("b").python(log.append, args=("b",))

    with pytest.raises(
        StepError, match=r"step 'a' of run 'r' failed: ValueError: no 1; mend .*, then resume or retry"
    ) as caught:
        verbs.run(wf, store=store, run_id="r")
    error = caught.value
    assert isinstance(error.__cause__, ValueError)
    assert ("r", "a", "a", "python", 1) == (
        error.run_id, error.node_id, error.step_name, error.step_type, error.attempt)  # fmt: skip
    assert ([], "failed") == (log, status(store))
    assert "no 1" in store.get_run("r").info.reason


@pytest.mark.parametrize("is_async", [True, False])
def test_the_finally_blocks_of_a_workflow_whose_step_failed_run_once(verbs, store, log, is_async):
    @workflow("w")
    def yields():
        try:
            yield step("a").python(fail)
        finally:
            log.append("finally")

    @workflow("w")
    async def awaits():
        try:
            await step("a").python(fail)
        finally:
            log.append("finally")

    with pytest.raises(StepError):
        verbs.run(awaits if is_async else yields, store=store, run_id="r")
    assert (["finally"], "failed") == (log, status(store))


def test_what_failed_deep_inside_is_told_once(verbs, store):
    @workflow("innermost")
    def innermost():
        yield step("d").python(fail)

    @workflow("inner")
    def inner():
        yield step("c").subworkflow(innermost)

    @workflow("w")
    def wf():
        yield step("b").subworkflow(inner)

    with pytest.raises(StepError) as caught:
        verbs.run(wf, store=store, run_id="r")
    text = "step 'b' of run 'r' failed: step 'b/c/d' of run 'r' failed: ValueError: no 1; mend the cause, then resume or retry"
    assert text == store.get_run("r").info.reason
    assert f"{text}; to go on in the workflow's code instead, catch it there: except StepError" == str(caught.value)


def test_code_that_raises_what_closes_generators_fails_and_is_undone(verbs, store, log):
    @workflow("w")
    def yields():
        yield step("a").python(int).with_rollback(lambda ctx: log.append("undone"))
        raise GeneratorExit

    @workflow("w")
    async def awaits():
        await step("a").python(int).with_rollback(lambda ctx: log.append("undone"))
        raise GeneratorExit

    for run_id, wf in (("r", yields), ("s", awaits)):
        with pytest.raises(WorkflowError, match="failed: GeneratorExit"):
            verbs.run(wf, store=store, run_id=run_id)
        assert "failed" == store.get_run(run_id).info.status
    assert ["undone", "undone"] == log


def test_try_and_except_are_for_the_workflows_own_errors(verbs, store):
    @workflow("w")
    def wf():
        n = yield step("a").python(int)
        try:
            1 / n
        except ZeroDivisionError:
            return (yield step("b").python(lambda: "mended"))

    assert "mended" == verbs.run(wf, store=store)


def test_a_workflow_error_ends_it_as_failed_with_its_reason(verbs, store):
    @workflow("w")
    def wf():
        yield step("a").python(int)
        raise WorkflowError("sold out")

    with pytest.raises(WorkflowError, match="sold out") as caught:
        verbs.run(wf, store=store, run_id="r")
    assert ("sold out", "r") == (caught.value.reason, caught.value.run_id)
    assert ("failed", True) == (status(store), "sold out" in store.get_run("r").info.reason)
    with pytest.raises(WorkflowError, match="sold out"):
        verbs.resume(wf, store, "r")


def test_an_error_of_the_code_fails_it_with_the_original_as_cause(verbs, store):
    @workflow("w")
    def wf():
        yield step("a").python(int)
        raise ValueError("mine")

    with pytest.raises(WorkflowError, match=r"code of workflow 'w' of run 'r' failed: ValueError: mine") as caught:
        verbs.run(wf, store=store, run_id="r")
    assert isinstance(caught.value.__cause__, ValueError)
    assert "failed" == status(store)


def test_an_error_of_the_code_before_its_first_step_fails_it_too(verbs, store):
    @workflow("w")
    def wf():
        raise ValueError("mine")
        yield

    with pytest.raises(WorkflowError, match="mine"):
        verbs.run(wf, store=store, run_id="r")
    assert "failed" == status(store)


# -- what is no step


@pytest.mark.parametrize(
    "make",
    [
        lambda: 1,
        lambda: None,
        lambda: "a",
        lambda: step("a"),
        lambda: [step("a").python(int)],
        lambda: WorkflowContext,
        lambda: fail,
    ],
)
def test_what_is_no_step_is_refused_wherever_it_is_yielded(verbs, store, log, make):
    @workflow("w")
    def wf():
        yield step("before").python(log.append, args=("before",))
        yield make()
        log.append("after")

    with pytest.raises(WorkflowError, match=r"workflow 'w' of run 'r' asked for") as caught:
        verbs.run(wf, store=store, run_id="r")
    assert isinstance(caught.value.__cause__, TypeError)
    assert (["before"], "blocked") == (log, status(store))


def test_a_step_without_a_kind_is_refused_with_what_to_do(verbs):
    @workflow("w")
    def wf():
        yield step("a")

    with pytest.raises(WorkflowError, match=r"complete it, as in step\('a'\)\.python\(f\)"):
        verbs.run(wf)


async def other() -> int:
    return 1


@pytest.mark.parametrize("kind", ["sleep", "gather", "task", "future", "awaitable"])
def test_awaiting_what_is_no_step_is_refused(verbs, store, log, kind):
    if not verbs.is_async and kind not in {"sleep", "awaitable"}:
        pytest.skip("there is no event loop that these could be made in")

    class Foreign:
        def __await__(self):
            yield "foreign"

    @workflow("w")
    async def wf():
        await step("before").python(log.append, args=("before",))
        if kind == "sleep":
            await asyncio.sleep(0)
        elif kind == "gather":
            await asyncio.gather(other(), other())
        elif kind == "task":
            await asyncio.ensure_future(other())
        elif kind == "future":
            await asyncio.get_running_loop().create_future()
        else:
            await Foreign()
        log.append("after")

    with pytest.raises(WorkflowError, match=r"'r'"):
        verbs.run(wf, store=store, run_id="r")
    assert (["before"], "blocked") == (log, status(store))


def test_a_workflow_may_await_coroutines_that_await_steps(verbs, store):
    async def twice(name: str) -> int:
        return await step(name).python(lambda: 2) * await step(f"{name}-again").python(lambda: 3)

    @workflow("w")
    async def wf():
        return await twice("a") + await twice("b")

    assert (12, 12) == (verbs.run(wf, store=store, run_id="r"), verbs.resume(wf, store, "r"))


def test_a_generator_may_delegate_to_another(verbs, store):
    def twice(name: str) -> Steps[int]:
        first = yield from step(name).python(lambda: 2)
        return first * (yield from step(f"{name}-again").python(lambda: 3))

    @workflow("w")
    def wf() -> Steps[int]:
        return (yield from twice("a")) + (yield from twice("b"))

    assert (12, 12) == (verbs.run(wf, store=store, run_id="r"), verbs.resume(wf, store, "r"))


# -- results and events


def test_the_full_result_tells_of_each_step_in_the_order_in_which_they_ended(verbs, store):
    @workflow("w")
    def wf():
        yield step("a").python(lambda: 1)
        yield step("b").python(int).when(lambda ctx: False)
        yield parallel("p", step("x").python(int))
        yield step("c").python(fail).as_result()
        return "end"

    told = verbs.run(wf, store=store, run_id="r", full=True)
    assert ("w", True, "end", "r", "finished", None, None) == (
        told.workflow_name, told.success, told.output, told.run_id, told.status, told.error, told.resumed)  # fmt: skip
    assert [("a", "succeeded"), ("b", "skipped"), ("p", "succeeded"), ("c", "failed")] == [
        (one.name, one.outcome) for one in told.step_results
    ]
    assert told.total_duration_ms >= 0
    assert all(one.duration_ms >= 0 for one in told.step_results)


def test_the_result_of_a_failed_workflow_names_the_step_and_unwraps_to_its_error(verbs, store):
    @workflow("w")
    def wf():
        yield step("a").python(int)
        yield step("b").python(fail)

    told = verbs.run(WorkflowEngine(store), wf, run_id="r")
    assert (False, "failed", None, "b", "no 1") == (
        told.success, told.status, told.output, told.failed_step.name, told.failed_step.error)  # fmt: skip
    assert ["a", "b"] == [one.name for one in told.step_results]
    with pytest.raises(StepError) as caught:
        told.unwrap()
    assert told.error is caught.value


def test_events_tell_of_steps_and_nested_ones(verbs, store):
    @workflow("w")
    def wf(n: int):
        yield step("a").python(lambda: n)
        yield parallel("p", step("x").python(fail), max_parallel=1)
        return n

    events = verbs.stream(wf, store=store, run_id="r", n=3)
    started, *_, completed = events
    assert isinstance(started, WorkflowStarted)
    assert isinstance(completed, WorkflowCompleted)
    assert ("w", {"n": 3}, None) == (started.workflow_name, dict(started.inputs), started.resumed)
    assert ("w", True, 3) == (completed.workflow_name, completed.success, completed.result.output)
    told = [(type(e), e.step_name, e.step_type) for e in events if isinstance(e, (StepStarted, StepCompleted))]
    assert [
        (StepStarted, "a", "python"),
        (StepCompleted, "a", "python"),
        (StepStarted, "p", "parallel"),
        (StepStarted, "p/x", "python"),
        (StepCompleted, "p/x", "python"),
        (StepCompleted, "p", "parallel"),
    ] == told
    ended = {e.step_name: e for e in events if isinstance(e, StepCompleted)}
    assert (True, 3, "succeeded") == (ended["a"].success, ended["a"].result.output, ended["a"].outcome)
    assert (False, "no 1", "failed") == (ended["p/x"].success, ended["p/x"].result.error, ended["p/x"].outcome)
    assert {"r"} == {event.run_id for event in events}
    assert all(isinstance(event.to_dict(), dict) and event.timestamp > 0 for event in events)


def test_each_beginning_of_a_step_is_followed_by_its_end(verbs, store):
    def leaf(name: str = "leaf"):
        return step(name).python(verbs.node(fail))

    def breaks(ctx, failed):
        raise ValueError("handler")

    def cancels():
        store.request_cancel("cancelled", "not wanted", None)
        raise ValueError("cancelled meanwhile")

    @workflow("inner")
    def inner():
        yield step("good").python(verbs.node(int)).with_rollback(verbs.node(lambda ctx: fail()))
        yield leaf()

    asked = {
        "plain": leaf(),
        "retried": leaf().retry(2, backoff=0),
        "handler": leaf().on_error(breaks),
        "fallback": leaf().on_error(lambda ctx, failed: leaf("other")),
        "skipped": leaf().skip_on_error(),
        "result": leaf().as_result(),
        "group": parallel("group", leaf(), step("good").python(verbs.node(int))).must_succeed(),
        "chosen": branch("chosen", (lambda ctx: True, leaf())),
        "items": step("items").map(verbs.node(lambda n: 1 // n), [1, 0]),
        "nested": step("nested").subworkflow(inner, {}),
        "deeper": parallel("deeper", step("nested").subworkflow(inner, {})).must_succeed(),
        "unrecordable": step("odd").python(verbs.node(object)),
        "cancelled": step("last").python(verbs.node(cancels)),
    }
    for name, wanted in asked.items():

        @workflow(name)
        def wf(wanted=wanted):
            yield step("first").python(verbs.node(int)).with_rollback(verbs.node(lambda ctx: None))
            yield wanted

        told: list[Any] = []
        with suppress(MilepostError):
            verbs.run(wf, store=store, run_id=name, hooks=[told.append])
        assert_ends(name, told)
        told.clear()
        with suppress(MilepostError):
            verbs.retry(wf, store, name, hooks=[told.append])
        assert_ends(name, told)


def assert_ends(name: str, events: list[Any]) -> None:
    """Each step that began has ended, each once for all its attempts, and what failed says with what."""
    steps = [event for event in events if isinstance(event, (StepStarted, StepCompleted))]
    still_open: set[str] = set()
    for event in steps:
        (still_open.add if isinstance(event, StepStarted) else still_open.discard)(event.step_name)
    assert (name, set()) == (name, still_open)
    ends = [event for event in steps if isinstance(event, StepCompleted)]
    assert (name, len(ends)) == (name, len({event.step_name for event in ends}))
    assert all(event.result.error for event in ends if not event.success)


def test_recorded_steps_are_not_told_again(verbs, store):
    broken = [True]

    @workflow("w")
    def wf():
        yield step("a").python(int)
        yield step("b").python(lambda: 1 // (not broken))

    with pytest.raises(StepError):
        verbs.run(wf, store=store, run_id="r")
    broken.clear()
    events = verbs.resume_stream(wf, store, "r")
    assert ["b"] == [event.step_name for event in events if isinstance(event, StepCompleted)]
    assert (("a",), "b") == (events[0].resumed.skipped, events[0].resumed.next_node)
