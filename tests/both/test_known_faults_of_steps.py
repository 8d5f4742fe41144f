"""Faults that users of other libraries met with workflows of steps, as reported in public: none of them may be here."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from milepost import (
    InputMismatchError,
    Retry,
    RunExistsError,
    RunSuspended,
    StepError,
    Steps,
    WorkflowContext,
    current,
    parallel,
    step,
    workflow,
)
from milepost.errors import NonDeterminismError, RunStopped


class Broken:
    """Raises `error` where it is called with `at`, until it is mended."""

    def __init__(self, log: list[Any], at: Any = None, error: BaseException | None = None) -> None:
        self.log = log
        self.at = at
        self.error = error or ValueError("no")

    def __call__(self, value: Any) -> Any:
        self.log.append(value)
        if value == self.at:
            raise self.error
        return value


def untouched(store: Any, run_id: str = "r1") -> tuple[bytes, Any]:
    return store.export(run_id), store.get_run(run_id).info


@pytest.fixture
def row(verbs) -> Callable[..., Any]:
    """Steps in a row, each called with its own name."""

    def build(ids: str, fn: Callable[[Any], Any]) -> Any:
        @workflow("row")
        def flow(n: int = 1) -> Steps[list[Any]]:
            told: list[Any] = []
            for name in ids:
                one = yield step(name).python(verbs.node(lambda value: fn(value)), args=(name,))
                told.append(one)
            return told

        return flow

    return build


# -- what is interrupted is not done -------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_workflow_that_a_timeout_cancels_has_not_done_its_step(store):
    log: list[str] = []
    limits: list[asyncio.Timeout] = []
    is_slow = [True]

    async def work(value: str) -> str:
        log.append(value)
        if value == "b" and is_slow[0]:
            limits[0].reschedule(asyncio.get_running_loop().time())
            await asyncio.Event().wait()
        return value

    @workflow("row")
    async def flow() -> str:
        told = ""
        for name in "abc":
            told += await step(name).python(work, args=(name,))
        return told

    async def disturbed() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60) as limit:
                limits.append(limit)
                await flow.arun(store=store, run_id="r1")

    asyncio.run(disturbed())
    assert ("interrupted", ["a"]) == (store.get_run("r1").info.status, [info.node_id for info in store.list("r1")])
    is_slow[0] = False
    assert "abc" == asyncio.run(flow.aresume(store, "r1"))
    assert ["a", "b", "b", "c"] == log


# -- a run id that is there ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_run_id_that_is_taken_is_never_a_silent_fresh_start(verbs, store, row, log, is_finished):
    broken = Broken(log, None if is_finished else "b")
    flow = row("ab", broken)
    if is_finished:
        verbs.run(flow, store=store, run_id="r1", n=1)
    else:
        with pytest.raises(StepError):
            verbs.run(flow, store=store, run_id="r1", n=1)
    before, count = untouched(store), len(log)
    with pytest.raises(RunExistsError, match="recorded 1, given 2"):
        verbs.run(flow, store=store, run_id="r1", n=2)
    with pytest.raises(InputMismatchError) as caught:
        verbs.run(flow, store=store, run_id="r1", n=2, if_exists="resume")
    assert (("n",), before, count) == (caught.value.names, untouched(store), len(log))
    broken.at = None
    assert ["a", "b"] == verbs.run(flow, store=store, run_id="r1", n=1, if_exists="resume")
    assert 1 == log.count("a")


# -- attempts over several processes -------------------------------------------------------------------------


def test_a_restart_neither_resets_the_attempts_nor_eats_one(verbs, timed, log):
    errors = iter([ValueError("1"), ValueError("2"), verbs.Killed(), ValueError("3")])

    def work() -> None:
        log.append(current().attempt)
        raise next(errors)

    @workflow("flow")
    def flow() -> Steps[None]:
        yield step("b").retry(Retry(3, backoff=0)).python(verbs.node(work))

    verbs.crash(flow, timed, "r1", {})
    with pytest.raises(StepError, match="after 3 failed attempts"):
        verbs.resume(flow, timed, "r1")
    assert 4 == len(log)
    assert ["1", "2", "3"] == [record.fields()["message"] for record in timed.read("r1", kinds=("failure",))]


# -- code that has changed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", ["ab2d", "acbd", "xab", "bacd"])
def test_changed_code_never_gets_an_old_result_for_a_new_call(verbs, store, row, log, ids):
    with pytest.raises(RunStopped):
        verbs.run(row("abcd", Broken(log)), store=store, run_id="r1", stop_after="c")
    before = untouched(store)
    with pytest.raises(NonDeterminismError):
        verbs.resume(row(ids, Broken(log)), store, "r1")
    assert (["a", "b", "c"], before) == (log, untouched(store))


SLEEPERS = {
    "the same": (["a", "sleep", "b", "c"], "continue"),
    "inserted before the sleep": (["a", "x", "sleep", "b", "c"], "refuse"),
    "inserted after it": (["a", "sleep", "x", "b", "c"], "continue"),
    "removed before it": (["sleep", "b", "c"], "refuse"),
    "removed after it": (["a", "sleep", "c"], "continue"),
    "renamed before it": (["z", "sleep", "b", "c"], "refuse"),
    "swapped after it": (["a", "sleep", "c", "b"], "continue"),
    "the sleep removed": (["a", "b", "c"], "refuse"),
}


@pytest.mark.parametrize("change", SLEEPERS)
def test_a_run_that_sleeps_gets_one_verdict_on_new_code_which_its_plan_says_beforehand(
    verbs, timed, clock, log, change
):
    def made(ids: list[str]) -> Any:
        @workflow("sleeping")
        def flow() -> Steps[list[str]]:
            for name in ids:
                if name == "sleep":
                    yield step(name).sleep(3600)
                else:
                    yield step(name).python(verbs.node(log.append), args=(name,))
            return ids

        return flow

    with pytest.raises(RunSuspended):
        verbs.run(made(["a", "sleep", "b", "c"]), store=timed, run_id="r1", clock=clock)
    clock.advance(hours=2)
    ids, verdict = SLEEPERS[change]
    before = untouched(timed)
    plan = verbs.plan(made(ids), timed, "r1", clock=clock)
    assert (verdict, before) == (plan.verdict, untouched(timed))
    if verdict == "continue":
        assert ids == verbs.resume(made(ids), timed, "r1", clock=clock)
        assert [name for name in ids if name != "sleep"] == log
        return
    for _ in range(2):
        with pytest.raises(NonDeterminismError) as caught:
            verbs.resume(made(ids), timed, "r1", clock=clock)
        assert plan.reason == str(caught.value)
    assert (["a"], before) == (log, untouched(timed))


def test_a_result_whose_type_has_changed_is_refused_with_its_place(verbs, store, log):
    def made(kind: type) -> Any:
        def work(value: str) -> Any:
            log.append(value)
            return {"n": 1}

        work.__annotations__["return"] = kind

        @workflow("shaped")
        def flow() -> Steps[Any]:
            told = yield step("a").python(work, args=("a",))
            yield step("b").python(work, args=("b",))
            return told

        return flow

    with pytest.raises(RunStopped):
        verbs.run(made(dict[str, int]), store=store, run_id="r1", stop_after="a")
    before = untouched(store)
    with pytest.raises(ValueError, match="recorded output of step 'a'"):
        verbs.resume(made(list[int]), store, "r1")
    assert "refuse" == verbs.plan(made(list[int]), store, "r1").verdict
    assert (["a"], before) == (log, untouched(store))


# -- inputs --------------------------------------------------------------------------------------------------


def hash_in_another_process(seed: str) -> str:
    lines = "from milepost.workflows.matching import hash_of; print(hash_of({'s': {'x', 'y', 'z'}, 'f': frozenset('abc')})[0])"
    return subprocess.run(
        [sys.executable, "-c", lines], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE, check=True, text=True,
    ).stdout  # fmt: skip


def test_a_set_has_one_hash_in_every_process():
    assert hash_in_another_process("1") == hash_in_another_process("2")


def test_inputs_that_differ_in_type_or_value_are_refused_and_others_are_not(verbs, store):
    @workflow("inputs")
    def flow(given: Any) -> Steps[Any]:
        return (yield step("a").python(lambda: 1))

    for number, given in enumerate((1, True, 1.0, "1", {"a": 1, "b": 2})):
        run_id = f"r{number}"
        verbs.run(flow, store=store, run_id=run_id, given=given)
        for other in (1, True, 1.0, "1", {"b": 2, "a": 1}):
            again = {"store": store, "run_id": run_id, "given": other, "if_exists": "resume"}
            if type(other) is type(given):
                assert 1 == verbs.run(flow, **again)
                continue
            with pytest.raises(InputMismatchError) as caught:
                verbs.run(flow, **again)
            assert ("given",) == caught.value.names


# -- what runs at once ---------------------------------------------------------------------------------------


def test_results_of_a_group_belong_to_names_not_to_the_order_of_ending(verbs, store, log):
    stopped = [True]

    def work(value: str) -> str:
        log.append(value)
        if stopped[0] and value in "ab":
            raise KeyboardInterrupt
        return value.upper()

    def made(order: str) -> Any:
        @workflow("group")
        def flow() -> Steps[list[str]]:
            told = yield parallel(
                "p", *(step(name).python(verbs.node(work), args=(name,)) for name in order), max_parallel=1
            )
            return [result.output for result in told]

        return flow

    with pytest.raises(KeyboardInterrupt):
        verbs.run(made("cab"), store=store, run_id="r1")
    assert ["p/c"] == [info.node_id for info in store.list("r1")]
    stopped[0] = False
    assert ["A", "B", "C"] == verbs.resume(made("abc"), store, "r1")
    assert 1 == log.count("c")


def test_a_second_pass_over_a_map_never_gets_the_results_of_the_first(verbs, store, log):
    broken = Broken(log, 4, KeyboardInterrupt())

    @workflow("passes")
    def flow() -> Steps[list[list[int]]]:
        told = []
        for number, items in enumerate(([1, 2], [3, 4])):
            told.append((yield step(f"pass-{number}").map(verbs.node(lambda i: broken(i)), items, max_parallel=1)))
        return told

    with pytest.raises(KeyboardInterrupt):
        verbs.run(flow, store=store, run_id="r1")
    broken.at = None
    assert [[1, 2], [3, 4]] == verbs.resume(flow, store, "r1")
    assert [1, 2, 3, 4, 4] == log


def test_a_group_one_of_whose_steps_is_skipped_ends_once_with_those_that_ran(verbs, store, log):
    @workflow("group")
    def flow() -> Steps[list[Any]]:
        told = yield parallel(
            "p",
            step("a").python(verbs.node(log.append), args=("a",)),
            step("b").when(lambda ctx: False).python(verbs.node(log.append), args=("b",)),
        )
        yield step("after").python(verbs.node(log.append), args=("after",))
        return [(result.name, result.outcome) for result in told]

    assert [("a", "succeeded"), ("b", "skipped")] == verbs.run(flow, store=store, run_id="r1")
    assert ["a", "after"] == log


# -- what code between steps sees ----------------------------------------------------------------------------


def test_time_and_randomness_of_a_context_are_the_same_when_its_code_runs_again(verbs, timed, clock):
    seen: list[tuple[Any, ...]] = []

    @workflow("drawn")
    def flow(ctx: WorkflowContext[Any]) -> Steps[None]:
        drawn = [ctx.now(), ctx.random(), ctx.uuid4(), ctx.is_replaying]
        yield step("a").python(lambda: None)
        seen.append((*drawn, ctx.now(), ctx.random(), ctx.uuid4()))
        yield step("b").python(lambda: None)

    with pytest.raises(RunStopped):
        verbs.run(flow, store=timed, run_id="r1", stop_before="b", clock=clock)
    clock.advance(hours=1)
    verbs.resume(flow, timed, "r1", clock=clock)
    assert [False, True] == [told[3] for told in seen]
    assert 1 == len({told[:3] + told[4:] for told in seen})
