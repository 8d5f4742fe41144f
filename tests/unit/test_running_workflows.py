"""What `milepost.testing` gives to those who test workflows."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from milepost import (
    MemoryStore,
    Retry,
    RunSuspended,
    SkipMarker,
    SQLiteStore,
    StepError,
    WorkflowContext,
    WorkflowError,
    branch,
    current,
    parallel,
    step,
    workflow,
)
from milepost.errors import OptionError, SignalRefusedError
from milepost.model.results import StepResult
from milepost.testing import FakeClock, arun_flow, context, crashtest, run_flow

pytest_plugins = ["milepost.testing.plugin"]


@dataclass
class Order:
    id: str
    paid: int = 0


def charge(order: Order) -> Order:
    raise AssertionError("the real function was called")


async def ship(order: Order) -> str:
    raise AssertionError("the real function was called")


def notify(name: str) -> str:
    return f"told {name}"


@workflow("shop", types=[Order])
def shop(order: Order):
    paid = yield from step("charge").python(charge, args=(order,))
    approval = yield from step("approve").wait_for("approval", timeout=timedelta(days=30), payload=str)
    if approval.timed_out:
        return "given up"
    told = yield from parallel("tell", *(step(name).python(notify, args=(name,)) for name in ("anna", "ben")))
    return [paid, approval.payload, *(result.output for result in told)]


def paying(order: Order) -> Order:
    return Order(order.id, 5)


# -- run_flow ------------------------------------------------------------------------------------------------


def test_stubs_stand_in_for_the_functions_of_steps_and_signals_answer_waits():
    result = run_flow(shop, {"order": Order("o1")}, stubs={"charge": paying}, signals={"approval": "yes"})
    assert [Order("o1", 5), "yes", "told anna", "told ben"] == result.output
    assert ("finished", True, ["charge", "approve", "tell"]) == (
        result.status,
        result.success,
        [told.name for told in result.step_results],
    )


def test_thirty_days_pass_at_once():
    clock = FakeClock()
    began = clock.now()
    with MemoryStore(clock=clock) as store:
        result = run_flow(shop, {"order": Order("o1")}, stubs={"charge": paying}, store=store)
    assert ("given up", timedelta(days=30)) == (result.output, clock.now() - began)


def test_inputs_are_a_mapping_or_bound_or_none():
    @workflow("greet")
    def greet(name: str = "you"):
        return (yield from step("say").python(lambda name: f"hello {name}", args=(name,)))

    assert ["hello anna", "hello ben", "hello you"] == [
        run_flow(greet, given).output for given in ({"name": "anna"}, greet.bind("ben"), None)
    ]
    assert "hello you" == run_flow(greet).output
    with pytest.raises(TypeError, match="greet"):
        run_flow(greet, {"nobody": 1})


@pytest.mark.parametrize(
    ("step_id", "given"), [("all/b", "stub"), ("sub/inner", "stub"), ("choice/x", "stub"), ("pay/instead", "stub")]
)
def test_what_is_inside_of_a_step_has_its_stub_by_its_whole_id(step_id, given):
    @workflow("inner")
    def inner():
        return (yield from step("inner").python(lambda: "real"))

    def fails():
        raise ValueError("no")

    @workflow("outer")
    def outer():
        group = yield from parallel("all", step("a").python(lambda: "real"), step("b").python(lambda: "real"))
        sub = yield from step("sub").subworkflow(inner)
        chosen = yield from branch("choice", (lambda ctx: True, step("x").python(lambda: "real")))
        saved = yield from step("pay").python(fails).on_error(lambda ctx, e: step("instead").python(lambda: "real"))
        return {
            "all/b": group.get_output("b"),
            "sub/inner": sub.final_output,
            "choice/x": chosen.inner_output,
            "pay/instead": saved,
        }

    told = run_flow(outer, stubs={step_id: lambda: given}).output
    assert {step_id: given} == {name: value for name, value in told.items() if value != "real"}


def test_one_stub_stands_in_for_all_items_of_a_map():
    @workflow("many")
    def many():
        return (yield from step("each").map(notify, ["a", "b"]))

    assert ["A", "B"] == run_flow(many, stubs={"each": str.upper}).output


def test_a_stub_of_no_step_is_refused_with_the_steps_that_there_were():
    with pytest.raises(OptionError, match=r"stubs name 'chrage', which workflow 'shop' did not ask for .*'charge'"):
        run_flow(shop, {"order": Order("o1")}, stubs={"chrage": paying, "charge": paying}, signals={"approval": "y"})


def test_a_stub_of_a_step_that_calls_nothing_is_refused():
    with pytest.raises(OptionError, match=r"step 'approve', which calls no function .*signals="):
        run_flow(shop, {"order": Order("o1")}, stubs={"charge": paying, "approve": paying})


def test_what_a_stub_gives_must_be_what_its_function_gives():
    with pytest.raises(StepError, match=r"step 'charge' .*output is str where .*Order is declared"):
        run_flow(shop, {"order": Order("o1")}, stubs={"charge": lambda order: "no order"})


@pytest.mark.parametrize("is_async", [False, True])
def test_async_steps_and_async_stubs_are_awaited(is_async):
    async def shipped(order: Order) -> str:
        await asyncio.sleep(0)
        return f"shipped {order.id}"

    @workflow("post", types=[Order])
    def post(order: Order):
        first = yield from step("plain").python(notify, args=(order.id,))
        return [first, (yield from step("ship").python(ship if is_async else charge, args=(order,)))]

    stub: Any = shipped if is_async else paying
    expected = ["told o1", "shipped o1"] if is_async else ["told o1", Order("o1", 5)]
    assert expected == run_flow(post, {"order": Order("o1")}, stubs={"ship": stub}).output


def test_a_coroutine_step_that_nobody_knew_of_is_awaited_and_nothing_before_it_runs_twice():
    calls: list[str] = []

    async def later() -> int:
        calls.append("later")
        return 2

    @workflow("mixed")
    def mixed():
        one = yield from step("one").python(lambda: calls.append("one") or 1)
        return [one, (yield from step("two").python(later))]

    assert ([1, 2], ["one", "later"]) == (run_flow(mixed).output, calls)


async def test_a_workflow_is_run_inside_an_event_loop_by_the_twin():
    @workflow("awaiting", types=[Order])
    async def awaiting(order: Order):
        paid = await step("charge").python(charge, args=(order,))
        reply = await step("ask").wait_for("go")
        await step("nap").sleep(86400)
        return [paid.paid, reply.payload]

    given = {"order": Order("o1")}
    result = await arun_flow(awaiting, given, stubs={"charge": paying}, signals={"go": {"by": "anna"}})
    assert [5, {"by": "anna"}] == result.output


def test_a_signal_may_be_a_function_of_the_wait():
    @workflow("asking")
    def asking():
        first = yield from step("a").wait_for("answer", prompt="a?")
        second = yield from step("b").wait_for("answer", prompt="b?")
        return [first.payload, second.payload]

    seen: list[str] = []

    def answer(wait: Any) -> str:
        seen.append(wait.prompt)
        return wait.wait_id

    assert (["a#1", "b#1"], ["a?", "b?"]) == (run_flow(asking, signals={"answer": answer}).output, seen)


def test_parallel_waits_are_all_answered():
    @workflow("survey")
    def survey():
        group = yield from parallel("all", *(step(name).wait_for(name) for name in "abc"), step("d").wait_for("a"))
        return [result.output.payload for result in group]

    assert [1, 2, 3, 1] == run_flow(survey, signals={"a": 1, "b": 2, "c": 3}).output


def test_a_wait_that_nobody_answers_is_raised():
    @workflow("asking")
    def asking():
        yield step("ask").wait_for("go")

    with pytest.raises(RunSuspended, match="ask#1") as caught:
        run_flow(asking, signals={"other": 1})
    assert "signals=" in caught.value.__notes__[0]


@pytest.mark.parametrize("timeout", [None, 60])
def test_an_answer_that_is_refused_is_raised_with_the_reason(timeout):
    @workflow("asking")
    def asking():
        yield step("ask").wait_for("go", payload=int, timeout=timeout)

    with pytest.raises(SignalRefusedError, match="'go' is refused"):
        run_flow(asking, signals={"go": "no number"})


def test_pauses_between_attempts_pass_at_once():
    tries: list[int] = []

    def fails_twice() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise OSError("no")
        return "done"

    @workflow("stubborn")
    def stubborn():
        alone = yield from step("alone").python(fails_twice).retry(Retry(3, backoff=3600, jitter=False, max_delay=9e8))
        tries.clear()
        group = yield from parallel(
            "group", step("x").python(fails_twice).retry(Retry(3, backoff=3600, jitter=False, max_delay=9e8))
        )
        return [alone, group[0].output]

    with MemoryStore(clock=FakeClock()) as store:
        began = store.clock.time()
        assert ["done", "done"] == run_flow(stubborn, store=store).output
        assert 4 * 3600 <= store.clock.time() - began


async def test_pauses_pass_at_once_in_an_event_loop_too():
    tries: list[int] = []

    async def fails_once() -> str:
        tries.append(1)
        if len(tries) < 2:
            raise OSError("no")
        return "done"

    @workflow("stubborn")
    async def stubborn():
        return await step("a").python(fails_once).retry(2, 3600)

    assert "done" == (await arun_flow(stubborn)).output


def test_steps_of_a_group_run_at_once():
    meeting = threading.Barrier(2)

    @workflow("group")
    def group():
        yield parallel("both", *(step(name).python(lambda: meeting.wait(5)) for name in "ab")).must_succeed()
        return "met"

    assert "met" == run_flow(group).output


def test_a_step_that_changes_its_arguments_changes_nothing_else():
    def pop(items: list[int]) -> int:
        return items.pop()

    @workflow("sharing")
    def sharing(items: list[int]):
        last = yield from step("pop").python(pop, args=(items,))
        return [last, items]

    given = [1, 2]
    assert ([2, [1, 2]], [1, 2]) == (run_flow(sharing, {"items": given}).output, given)


def test_code_that_does_something_else_when_it_is_played_again_is_found():
    from milepost.errors import NonDeterminismError

    numbers = iter(range(9))

    @workflow("random")
    def random():
        yield step(f"step-{next(numbers)}").python(lambda: 1)
        yield step("nap").sleep(1)

    with pytest.raises(NonDeterminismError):
        run_flow(random)


def test_a_workflow_that_fails_is_raised_after_its_rollbacks():
    undone: list[str] = []

    @workflow("failing", types=[Order])
    def failing(order: Order):
        yield step("charge").python(charge, args=(order,)).with_rollback(lambda ctx, paid: undone.append(paid.id))
        raise WorkflowError("out of stock")

    with pytest.raises(WorkflowError, match="out of stock"):
        run_flow(failing, {"order": Order("o1")}, stubs={"charge": paying})
    assert ["o1"] == undone
    with pytest.raises(StepError, match="'charge'"):
        run_flow(failing, {"order": Order("o1")})


def test_a_workflow_is_run_on_a_store_of_the_test(tmp_path):
    with SQLiteStore(tmp_path / "runs.db", clock=FakeClock()) as store:
        result = run_flow(shop, {"order": Order("o1")}, stubs={"charge": paying}, signals={"approval": "y"},
                          store=store, run_id="r-1", tags={"by": "test"})  # fmt: skip
        info = store.get_run("r-1").info
    assert ("r-1", "finished", {"by": "test"}) == (result.run_id, info.status, dict(info.tags))


# -- context --------------------------------------------------------------------------------------------------


def is_large(ctx: WorkflowContext[Any]) -> bool:
    return bool(
        ctx.inputs["amount"] > 100 and ctx.get_step_output("check") == "ok" and not ctx.is_step_skipped("check")
    )


@pytest.mark.parametrize(
    ("amount", "check", "answer"),
    [(500, "ok", True), (5, "ok", False), (500, "no", False), (500, SkipMarker("predicate_false"), False)],
)
def test_a_predicate_is_asked_alone_under_a_context(amount, check, answer):
    with context(inputs={"amount": amount}, results={"check": check}) as ctx:
        assert answer is is_large(ctx)
        assert ctx is current()


def test_a_context_tells_what_a_workflow_s_code_sees():
    failed = StepResult("pay", "python", False, error="no", error_type="ValueError", outcome="failed")
    with context(results={"pay": failed}, config={"currency": "EUR"}, version=3, is_replaying=True) as ctx:
        assert (failed, {"currency": "EUR"}, 3, True) == (ctx.results["pay"], ctx.config, ctx.version, ctx.is_replaying)
    with context(now=datetime(2030, 1, 1, tzinfo=UTC)) as ctx:
        assert ({}, {}, None, 2030) == (dict(ctx.inputs), ctx.config, ctx.get_step_output("x"), ctx.now().year)


# -- crashtest ------------------------------------------------------------------------------------------------


def construct() -> Any:
    def add(a: int, b: int = 1) -> int:
        return a + b

    def fails() -> int:
        raise ValueError("no")

    @workflow("inner")
    def inner(n: int):
        return (yield from step("i").python(add, args=(n,)))

    @workflow("crashed")
    def crashed(ctx: WorkflowContext, n: int):
        one = yield from step("one").python(add, args=(n,)).when(lambda ctx: True)
        chosen = yield from branch(
            "b",
            (lambda ctx: False, step("x").python(fails)),
            (lambda ctx: True, step("y").python(add, args=(one,))),
        )
        group = yield from parallel("p", step("c").python(add, args=(1,)), step("w").wait_for("go", payload=int))
        items = yield from step("m").map(add, [1, 2])
        saved = yield from step("s").python(fails).on_error(lambda ctx, e: step("f").python(add, args=(9,)))
        sub = yield from step("sub").subworkflow(inner, {"n": one})
        yield step("nap").sleep(3600)
        late = yield from step("late").wait_for("never", timeout=7200)
        return [one, chosen.inner_output, group[1].output.payload, items, saved, sub.final_output, late.timed_out]

    return crashed


@pytest.mark.wide
def test_a_workflow_that_dies_anywhere_ends_as_if_nothing_had_happened():
    report = crashtest(construct(), {"n": 1}, signals={"go": 5})
    assert report.crashes == report.scenarios > 60
    assert {"one#1", "b/y#1", "s#1", "s/f#1", "sub/i#1"} <= set(report.calls)


def test_a_crashed_workflow_goes_on_from_a_file(tmp_path):
    @workflow("short")
    def short(n: int):
        one = yield from step("one").python(lambda n: n + 1, args=(n,))
        reply = yield from step("ask").wait_for("go")
        return [one, reply.payload]

    def opened(clock: Any) -> SQLiteStore:
        return SQLiteStore(tmp_path / "runs.db", durability="normal", clock=clock)

    report = crashtest(short, short.bind(1), signals={"go": "x"}, store=opened)
    assert report.crashes > 10


def test_a_workflow_whose_code_is_not_the_same_twice_is_found_by_crashing_it():
    from milepost.errors import NonDeterminismError

    calls: list[int] = []

    @workflow("counting")
    def counting():
        calls.append(1)
        return (yield from step(f"call-{len(calls)}").python(lambda: 1))

    with pytest.raises((NonDeterminismError, AssertionError)):
        crashtest(counting)


def test_rollbacks_of_a_part_that_failed_are_done_once_wherever_it_dies():
    undone: list[str] = []

    def fails() -> None:
        raise ValueError("no")

    @workflow("part")
    def part():
        yield step("a").python(lambda: 1).with_rollback(lambda ctx: undone.append("a"))
        yield step("b").python(fails)

    @workflow("whole")
    def whole():
        yield step("part").subworkflow(part).skip_on_error()
        return "done"

    report = crashtest(whole, before=undone.clear)
    assert report.crashes > 5
    assert {"a"} == set(undone)


# -- fixtures -------------------------------------------------------------------------------------------------


def test_the_fixtures_serve_workflows(fake_clock: FakeClock, memory_store: MemoryStore, request: pytest.FixtureRequest):
    run = request.getfixturevalue("run_flow")

    @workflow("sleeper")
    def sleeper():
        yield step("nap").sleep(timedelta(days=30))
        return "awake"

    began = fake_clock.now()
    result = run(sleeper, run_id="r-1")
    assert ("awake", timedelta(days=30)) == (result.output, fake_clock.now() - began)
    assert "finished" == memory_store.get_run("r-1").info.status
    assert 5 < request.getfixturevalue("crashtest")(sleeper).crashes
