"""What each kind of step and each modifier does; answered from the record it does it again, and runs nothing."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from milepost import (
    END,
    BranchResult,
    Engine,
    Graph,
    Reply,
    RunSuspended,
    SkipMarker,
    StepError,
    StepResult,
    Steps,
    WorkflowContext,
    WorkflowError,
    WorkflowResult,
    branch,
    current,
    parallel,
    step,
    workflow,
)
from milepost.errors import (
    AsyncNodeError,
    DuplicateStepNameError,
    NoBranchMatchedError,
    PredicateTypeError,
    RunStopped,
    WorkflowHeldError,
)
from milepost.events import Progress
from milepost.model.results import StepType, SubWorkflowInvocationResult


def double(n: int) -> int:
    return n * 2


def fail(n: int = 0) -> int:
    raise ValueError(f"no {n}")


def yes(ctx: WorkflowContext) -> bool:
    return True


def no(ctx: WorkflowContext) -> bool:
    return False


class Cut:
    """Ends a workflow the first time, so that a resume has to answer what came before from the record."""

    def __init__(self) -> None:
        self.is_first = True

    def __call__(self) -> None:
        if self.is_first:
            self.is_first = False
            raise ValueError("cut")


@pytest.fixture
def both_times(verbs, store, work, log):
    """What one step gives: when it is done, and when a resume answers it from the record."""

    def give(asked: Any, **options: Any) -> tuple[Any, Any]:
        seen: list[Any] = []
        cut = step("cut").python(Cut())

        @workflow("one")
        def one(ctx: WorkflowContext):
            seen.append((yield asked))
            yield cut

        with pytest.raises(StepError, match="cut"):
            verbs.run(one, store=store, run_id="r", **options)
        ran = list(log)
        verbs.resume(one, store, "r", **options)
        assert ran == log
        return tuple(seen)

    return give


# -- yield, yield from, await


@pytest.mark.parametrize("kind", ["yield", "yield from", "await"])
def test_all_ways_to_ask_for_a_step_are_the_same(verbs, store, work, log, kind):
    asked = step("a").python(work(double), args=(2,))

    @workflow("w")
    def yields():
        return (yield asked)

    @workflow("w")
    def yields_from():
        return (yield from asked)

    @workflow("w")
    async def awaits():
        return await asked

    wf = {"yield": yields, "yield from": yields_from, "await": awaits}[kind]
    assert 4 == verbs.run(wf, store=store, run_id="r")
    assert ["a"] == [info.node_id for info in store.list("r")]
    assert (4, ["double"]) == (verbs.resume(wf, store, "r"), log)


@pytest.mark.every_store
def test_arguments_are_given_by_place_and_by_name(verbs, store, work):
    def told(a, b=0, *, c):
        return [a, b, c]

    @workflow("w")
    def wf():
        return (yield step("a").python(work(told), args=(1,), kwargs={"c": 3}))

    assert [1, 0, 3] == verbs.run(wf, store=store)


def test_python_control_flow_is_free_around_steps(verbs, store, work, log):
    @workflow("w")
    def wf(n: int):
        total = 0
        for i in range(n):
            total += yield step(f"a{i}").python(work(double), args=(i,))
            if total > 4:
                return total
        while total < 100:
            total += 100
        return total

    assert 6 == verbs.run(wf, store=store, n=10)
    assert ["double"] * 3 == log
    assert 102 == verbs.run(wf, store=store, n=2)


def test_a_second_step_of_one_name_fails_the_workflow_and_the_error_shows_the_way(verbs, store, work, log):
    @workflow("w")
    def wf():
        for n in range(2):
            yield step("a").python(work(double), args=(n,))

    with pytest.raises(WorkflowHeldError, match=r'"a-\{i\}"') as caught:
        verbs.run(wf, store=store, run_id="r")
    error = caught.value.__cause__
    assert isinstance(error, DuplicateStepNameError)
    assert ("a", "r", ["double"]) == (error.step_name, error.run_id, log)
    assert "blocked" == store.get_run("r").info.status


def test_names_inside_a_step_are_its_own(verbs, store, work, log):
    @workflow("inner")
    def inner():
        return (yield step("a").python(work(double), args=(1,)))

    @workflow("w")
    def wf():
        yield step("a").python(work(double), args=(0,))
        yield parallel("p", step("a").python(work(double), args=(1,)))
        yield branch("b", (yes, step("a").python(work(double), args=(2,))))
        yield step("m").map(work(double), [3])
        yield step("s").subworkflow(inner)
        yield step("e").python(fail).on_error(lambda ctx, failed: step("a").python(work(double), args=(4,)))

    verbs.run(wf, store=store, run_id="r")
    ids = [info.node_id for info in store.list("r")]
    assert ["a", "p/a", "p", "b/a", "b", "m/0", "m", "s/a", "s", "e/a", "e"] == ids


# -- async functions


def test_an_async_function_under_a_sync_verb_is_refused_by_name_before_it_runs(store, log):
    async def fetch() -> int:
        log.append("fetch")
        return 1

    @workflow("w")
    def wf():
        yield step("a").python(log.append, args=("a",))
        return (yield step("b").python(fetch))

    with pytest.raises(AsyncNodeError, match=r"fetch.*'b'.*'r'.*await") as caught:
        wf.run(store=store, run_id="r")
    assert (("b",), ["a"]) == (caught.value.names, log)
    assert "interrupted" == store.get_run("r").info.status


def test_what_a_sync_verb_refused_an_async_one_goes_on_with(store, log):
    async def fetch() -> int:
        return 1

    @workflow("w")
    def wf():
        yield step("a").python(log.append, args=("a",))
        return (yield step("b").python(fetch))

    for _ in range(2):
        with pytest.raises(AsyncNodeError):
            wf.run(store=store, run_id="r", if_exists="resume")
    assert (1, ["a"]) == (asyncio.run(wf.aresume(store, "r")), log)


def graph_of(name: str, fn: Any) -> Any:
    async def node(state: Any) -> Any:
        return await fn(state)

    return Graph(dict).add_node(name, node).set_entry(name).add_edge(name, END).compile("inner")


def routed_by(name: str, fn: Any) -> Any:
    async def router(state: Any) -> Any:
        return await fn(state)

    graph = Graph(dict).add_node(name, lambda s: {}).set_entry(name)
    return graph.add_conditional_edge(name, router, targets=[END]).compile("inner")


class Fetching:
    """An object that is called, and awaited."""

    async def __call__(self, n: int) -> int:
        return n + 1


def test_what_is_awaited_is_so_however_its_arguments_are_given(store):
    made = partial(partial(Fetching()), 1)

    @workflow("w")
    def wf():
        return (yield step("a").python(made)), (yield step("b").map(partial(made.func), [2]))

    assert (2, [3]) == asyncio.run(wf.arun())
    with pytest.raises(AsyncNodeError, match="'Fetching' of step 'a'"):
        wf.run(store=store, run_id="r")


@pytest.mark.parametrize(
    "make",
    [
        lambda fn: step("x").python(double, args=(1,)).when(fn),
        lambda fn: branch("x", (fn, step("c").python(double, args=(1,)))),
        lambda fn: step("x").python(fail).on_error(fn),
        lambda fn: step("x").map(fn, [1, 2]),
        lambda fn: parallel("x", step("a").python(double, args=(1,)), step("b").python(fn, args=(1,))),
        lambda fn: step("x").python(fn, args=(1,)).skip_on_error(),
        lambda fn: step("x").python(fn, args=(1,)).as_result(),
        lambda fn: step("x").python(fn, args=(1,)).retry(3),
        lambda fn: step("x").python(double, args=(1,)).with_rollback(fn),
        lambda fn: parallel("x", step("a").python(double, args=(1,)).with_rollback(fn)),
        lambda fn: step("x").subworkflow(graph_of("fetch", fn), {}),
        lambda fn: step("x").subworkflow(routed_by("fetch", fn), {}),
    ],
)
def test_an_async_function_in_any_place_is_refused_under_a_sync_verb(store, make):
    async def fetch(*args: Any) -> bool:
        raise AssertionError("it ran")

    @workflow("w")
    def wf():
        yield make(fetch)

    with pytest.raises(AsyncNodeError, match="fetch"):
        wf.run(store=store, run_id="r")
    assert "interrupted" == store.get_run("r").info.status


def test_a_function_that_gives_a_coroutine_fails_with_what_to_do(verbs, store):
    async def fetch() -> int:
        raise AssertionError("it ran")

    @workflow("w")
    def wf():
        return (yield step("a").python(lambda: fetch()))

    for options in ({}, {"store": store, "run_id": "r"}):
        with pytest.raises(StepError, match="gave a coroutine that nobody awaits"):
            verbs.run(wf, **options)


def test_a_run_is_left_to_a_worker_only_by_what_can_await_its_on_error(store):
    async def other(ctx: Any, failed: StepResult) -> Any:
        return step("b").python(double, args=(1,))

    @workflow("w")
    def wf():
        yield step("a").python(fail).on_error(other)
        return (yield step("c").python(double, args=(2,)))

    with pytest.raises(RunStopped):
        asyncio.run(wf.arun(store=store, run_id="r", stop_before="c"))
    engine = Engine(store, flows=[wf])
    with pytest.raises(AsyncNodeError, match="other"):
        engine.start(wf, run_id="r", if_exists="resume")
    assert "interrupted" == store.get_run("r").info.status
    asyncio.run(engine.astart(wf, run_id="r", if_exists="resume"))
    assert "ready" == store.get_run("r").info.status


def test_a_plan_says_where_an_async_on_error_would_have_to_be_awaited(store):
    async def other(ctx: Any, failed: StepResult) -> Any:
        return step("b").python(double, args=(1,))

    @workflow("w")
    def wf():
        yield step("a").python(fail).on_error(other)
        return (yield step("c").python(double, args=(2,)))

    with pytest.raises(RunStopped):
        asyncio.run(wf.arun(store=store, run_id="r", stop_before="c"))
    plan = wf.plan_resume(store, "r")
    assert ("refuse", AsyncNodeError) == (plan.verdict, type(plan.error))
    assert "c" == asyncio.run(wf.aplan_resume(store, "r")).next_node


# -- when


def test_a_step_whose_predicate_is_true_runs(both_times, work, log):
    assert (4, 4) == both_times(step("a").python(work(double), args=(2,)).when(yes))
    assert ["double"] == log


def test_a_step_whose_predicate_is_false_is_skipped(both_times, work, log):
    skipped = SkipMarker("predicate_false")
    assert (skipped, skipped) == both_times(step("a").python(work(double), args=(2,)).when(no))
    assert [] == log


def test_a_step_whose_predicate_fails_is_skipped_with_a_warning(both_times, work, log, caplog):
    skipped = SkipMarker("predicate_exception")
    assert (skipped, skipped) == both_times(step("a").python(work(double), args=(2,)).when(lambda ctx: 1 / 0))
    (record,) = [r for r in caplog.records if "predicate failed" in r.message]
    assert ("WARNING", "r", "a") == (record.levelname, record.run_id, record.node_id)
    assert "ZeroDivisionError" in record.message


def test_a_skip_is_a_success(both_times):
    first, again = both_times(step("a").python(fail).when(no).as_result())
    assert ("skipped", True, SkipMarker("predicate_false"), None) == (
        first.outcome, first.success, first.output, first.error)  # fmt: skip
    assert first == again


@pytest.mark.parametrize("answer", [None, 0, 1, "", "yes", [], SkipMarker("x")])
def test_a_predicate_answers_true_or_false_and_nothing_else(verbs, store, work, log, answer):
    @workflow("w")
    def wf():
        yield step("a").python(work(double), args=(1,)).when(lambda ctx: answer)

    with pytest.raises(PredicateTypeError, match="step 'a' of run 'r'") as caught:
        verbs.run(wf, store=store, run_id="r")
    assert isinstance(caught.value, TypeError)
    assert (answer, "a", StepType.PYTHON, []) == (
        caught.value.returned,
        caught.value.step_name,
        caught.value.step_type,
        log,
    )
    assert "failed" == store.get_run("r").info.status


def test_a_wrong_answer_of_a_predicate_is_nothing_that_a_step_makes_good(verbs, store):
    @workflow("w")
    def wf():
        yield step("a").python(double, args=(1,)).when(lambda ctx: 1).skip_on_error().as_result()

    with pytest.raises(PredicateTypeError):
        verbs.run(wf, store=store)


@pytest.mark.parametrize("verdict", [True, False])
def test_a_predicate_is_asked_once_whatever_it_would_say_later(verbs, store, work, log, verdict):
    asked: list[bool] = []

    def predicate(ctx: WorkflowContext) -> bool:
        asked.append(verdict if not asked else not verdict)
        return asked[-1]

    first, second = Cut(), Cut()

    @workflow("w")
    def wf():
        yield step("a").python(first).when(predicate)
        yield step("b").python(second)
        return "end"

    for _ in range(2 if verdict else 1):
        with pytest.raises(StepError):
            verbs.run(wf, store=store, run_id="r", if_exists="resume")
    assert "end" == verbs.resume(wf, store, "r")
    assert [verdict] == asked


def test_a_predicate_sees_the_context_and_may_be_async_under_async_verbs(verbs, store):
    def predicate(ctx: WorkflowContext) -> bool:
        return ctx.inputs["n"] == 1 and ctx.get_step_output("a") == 2 and current() is ctx

    @workflow("w")
    def wf(n: int):
        yield step("a").python(double, args=(n,))
        return (yield step("b").python(double, args=(n,)).when(verbs.node(predicate)))

    assert 2 == verbs.run(wf, store=store, n=1)
    assert SkipMarker("predicate_false") == verbs.run(wf, store=store, n=2)


# -- branch


def test_a_branch_does_the_first_step_whose_predicate_is_true(both_times, work, log):
    asked = branch(
        "b",
        (no, step("x").python(work(double, "x"), args=(1,))),
        (yes, step("y").python(work(double, "y"), args=(2,))),
        (lambda ctx: 1 / 0, step("z").python(work(double, "z"), args=(3,))),
    )
    chosen = BranchResult(1, "y", 4)
    assert ((chosen, chosen), ["y"]) == (both_times(asked), log)


def test_a_branch_without_a_true_predicate_fails_the_step(verbs, store):
    @workflow("w")
    def wf():
        yield branch("b", (no, step("x").python(double, args=(1,))))

    with pytest.raises(NoBranchMatchedError, match="branch 'b' of run 'r'") as caught:
        verbs.run(wf, store=store, run_id="r")
    assert isinstance(caught.value, (StepError, LookupError))
    assert ("b", "b", "branch") == (caught.value.node_id, caught.value.step_name, caught.value.step_type)


@pytest.mark.parametrize(("predicate", "cause"), [(lambda ctx: 1 / 0, ZeroDivisionError), (lambda ctx: 1, None)])
def test_a_predicate_of_a_branch_that_fails_or_answers_wrong_fails_the_step(verbs, store, predicate, cause):
    @workflow("w")
    def wf():
        yield branch("b", (predicate, step("x").python(double, args=(1,))), (yes, step("y").python(double, args=(1,))))

    with pytest.raises(StepError, match="'b'") as caught:
        verbs.run(wf, store=store, run_id="r")
    assert cause is (None if isinstance(caught.value, PredicateTypeError) else type(caught.value.__cause__))


def test_the_chosen_branch_is_not_chosen_again(verbs, store, log):
    flags, cut = iter([True, False, False]), Cut()

    @workflow("w")
    def wf():
        yield branch(
            "b",
            (lambda ctx: next(flags), step("x").python(cut)),
            (yes, step("y").python(log.append, args=("y",))),
        )
        return "end"

    with pytest.raises(StepError, match="cut"):
        verbs.run(wf, store=store, run_id="r")
    assert ("end", []) == (verbs.resume(wf, store, "r"), log)


def test_a_failed_step_inside_a_branch_fails_it_with_the_original_as_cause(verbs, store):
    @workflow("w")
    def wf():
        yield branch("b", (yes, step("x").python(fail, args=(7,))))

    with pytest.raises(StepError, match="step 'b' of run 'r'") as caught:
        verbs.run(wf, store=store, run_id="r")
    assert ("no 7", "branch") == (str(caught.value.__cause__), caught.value.step_type)


# -- parallel


def test_a_failed_child_fails_neither_its_siblings_nor_the_group(both_times, work, log):
    first, again = both_times(
        parallel("p", step("a").python(work(fail), args=(1,)), step("b").python(work(double), args=(2,)))
    )
    assert (False, True, 4, "no 1", "ValueError", "failed") == (
        first.success, first[1].success, first[1].output, first[0].error, first[0].error_type, first[0].outcome)  # fmt: skip
    assert first == again
    assert ["double", "fail"] == sorted(log)


def test_must_succeed_fails_the_step_after_all_have_ended(verbs, store, work, log):
    @workflow("w")
    def wf():
        a, b = step("a").python(work(fail), args=(1,)), step("b").python(work(double), args=(2,))
        yield parallel("p", a, b, step("c").python(work(fail), args=(3,))).must_succeed()

    with pytest.raises(StepError, match=r"'a': no 1.*'c': no 3") as caught:
        verbs.run(wf, store=store, run_id="r")
    assert ("p", ["double", "fail", "fail"]) == (caught.value.step_name, sorted(log))
    assert {"p/a", "p/b", "p/c"} == {info.node_id for info in store.list("r")}


def test_children_that_ended_are_not_done_again(verbs, store, work, log):
    cut = Cut()

    @workflow("w")
    def wf():
        a, b = step("a").python(work(double), args=(1,)), step("b").python(cut)
        yield parallel("p", a, b).must_succeed()
        return "end"

    with pytest.raises(StepError, match="cut"):
        verbs.run(wf, store=store, run_id="r")
    assert ("end", ["double"]) == (verbs.retry(wf, store, "r"), log)


def test_children_have_modifiers_of_their_own(both_times):
    first, again = both_times(
        parallel(
            "p",
            step("a").python(fail).skip_on_error(),
            step("b").python(fail).on_error(lambda ctx, failed: step("other").python(double, args=(4,))),
            step("c").python(double, args=(1,)).when(no),
            step("d").python(fail).as_result(),
        )
    )
    assert ["skipped", "recovered", "skipped", "failed"] == [one.outcome for one in first]
    assert (8, first) == (first.get_output("b"), again)


def test_an_empty_group_and_an_empty_map_are_done_at_once(both_times):
    assert ((), ()) == tuple(one.child_results for one in both_times(parallel("p")))


def test_groups_nest(both_times, work):
    inner = parallel("q", step("a").python(work(double), args=(1,)), step("b").python(work(double), args=(2,)))
    first, again = both_times(parallel("p", inner, step("a").python(work(double), args=(3,))))
    assert ([2, 4], 6) == ([one.output for one in first[0].output], first[1].output)
    assert first == again


# -- map


def test_a_map_gives_what_its_items_gave_in_their_order(both_times, work, store):
    assert ([2, 4, 6], [2, 4, 6]) == both_times(step("m").map(work(double), [1, 2, 3]))
    *items, last, cut = [info.node_id for info in store.list("r")]
    assert ({"m/0", "m/1", "m/2"}, "m", "cut") == (set(items), last, cut)


def test_the_items_are_recorded_before_the_first_runs(verbs, store):
    seen: list[Any] = []

    def look(n: int) -> int:
        seen.append([r.kind for r in store.read("r") if r.node_id == "m"])
        return n

    @workflow("w")
    def wf():
        yield step("m").map(verbs.node(look), [1, 2], max_parallel=1)

    verbs.run(wf, store=store, run_id="r")
    assert [["items"], ["items"]] == seen


def test_keys_name_the_items_with_what_ids_may_not_have_encoded(verbs, store):
    @workflow("w")
    def wf():
        return (yield step("m").map(len, ["a/b", "c%d", ".", "..", "\n", " ", "", "ü"], key=str))

    assert [3, 3, 1, 2, 1, 1, 0, 1] == verbs.run(wf, store=store, run_id="r")
    ids = {info.node_id for info in store.list("r")}
    assert {"m/a%2Fb", "m/c%25d", "m/%2E", "m/%2E%2E", "m/%0A", "m/%20"} < ids
    assert 9 == len(ids)


def test_equal_keys_are_refused_before_anything_runs(verbs, store, work, log):
    @workflow("w")
    def wf():
        yield step("m").map(work(double), [1, 2], key=lambda n: "same")

    with pytest.raises(DuplicateStepNameError, match="two items with the key 'same'"):
        verbs.run(wf, store=store, run_id="r")
    assert ([], "failed") == (log, store.get_run("r").info.status)


@pytest.mark.parametrize("key", [lambda n: n, lambda n: 1 / 0, lambda n: "k" * (511 + n)])
def test_a_key_that_is_no_text_too_long_or_fails_fails_the_workflow(verbs, store, work, log, key):
    @workflow("w")
    def wf():
        yield step("m").map(work(double), [1, 2], key=key)

    with pytest.raises(StepError, match="step 'm'"):
        verbs.run(wf, store=store, run_id="r")
    assert ([], "failed") == (log, store.get_run("r").info.status)


def test_a_failed_item_fails_the_step_after_all_have_ended_and_retry_runs_only_it(verbs, store, log):
    broken = [True]

    def item(n: int) -> int:
        log.append(f"{n}")
        if n == 1 and broken:
            raise ValueError("broken")
        return n * 2

    @workflow("w")
    def wf():
        return (yield step("m").map(verbs.node(item), [0, 1, 2]))

    with pytest.raises(StepError, match=r"1 of its 3 items failed.*'1': broken"):
        verbs.run(wf, store=store, run_id="r")
    assert ["0", "1", "2"] == sorted(log)
    broken.clear()
    assert [0, 2, 4] == verbs.retry(wf, store, "r")
    assert ["0", "1", "1", "2"] == sorted(log)


def test_each_item_that_is_done_is_told_as_progress(verbs, store):
    broken = [True]

    def item(n: int) -> int:
        if n == 1 and broken:
            raise ValueError("broken")
        return n

    @workflow("w")
    def wf():
        return (yield step("m").map(verbs.node(item), [0, 1, 2]))

    def progress(events):
        return [(event.node_id, event.done, event.total) for event in events if isinstance(event, Progress)]

    first: list[Any] = []
    with pytest.raises(StepError):
        verbs.run(wf, store=store, run_id="r", hooks=(first.append,))
    assert [("m", 1, 3), ("m", 2, 3)] == progress(first)
    broken.clear()
    second: list[Any] = []
    verbs.retry(wf, store, "r", hooks=(second.append,))
    assert [("m", 3, 3)] == progress(second)


def test_the_retries_of_a_map_are_its_items(both_times, log):
    def item(n: int) -> int:
        log.append(f"{n}#{current().attempt}")
        if current().attempt < n:
            raise ValueError("no")
        return n

    assert ([1, 2, 3], [1, 2, 3]) == both_times(step("m").map(item, [1, 2, 3]).retry(3, backoff=0))
    assert ["1#1", "2#1", "2#2", "3#1", "3#2", "3#3"] == sorted(log)


# -- on_error, skip_on_error, as_result


def test_a_fallback_replaces_a_failure(both_times, work, log):
    asked = step("a").python(work(fail), args=(1,)).retry(2, backoff=0)
    entries: list[StepResult] = []

    def keep(ctx: WorkflowContext, failed: StepResult):
        entries.append(failed)
        return step("other").python(work(double), args=(4,))

    assert (8, 8) == both_times(asked.on_error(keep))
    assert ["fail", "fail", "double"] == log
    for told in entries:
        assert ("a", "no 1", "ValueError", False, 2) == (
            told.name, told.error, told.error_type, told.success, told.attempts)  # fmt: skip


def test_a_fallback_is_an_outcome_of_its_own(both_times):
    asked = step("a").python(fail).on_error(lambda ctx, failed: step("other").python(double, args=(4,))).as_result()
    first, again = both_times(asked)
    assert ("recovered", True, 8, None) == (first.outcome, first.success, first.output, first.error)
    assert first == again


@pytest.mark.parametrize(
    ("handler", "second"),
    [
        (lambda ctx, failed: step("other").python(fail, args=(2,)), "no 2"),
        (lambda ctx, failed: 1 / 0, "division by zero"),
        (lambda ctx, failed: None, "instead of a step"),
    ],
)
def test_a_fallback_or_a_handler_that_fails_fails_the_step_with_both_errors(verbs, store, handler, second):
    @workflow("w")
    def wf():
        yield step("a").python(fail, args=(1,)).on_error(handler)

    with pytest.raises(StepError, match=r"step 'a' of run 'r' failed: no 1.*" + second) as caught:
        verbs.run(wf, store=store, run_id="r")
    assert ("a", "python") == (caught.value.step_name, caught.value.step_type)
    assert caught.value.__cause__ is not None
    assert "failed" == store.get_run("r").info.status


@pytest.mark.parametrize("is_interrupted", [False, True])
@pytest.mark.parametrize("kind", ["parallel", "branch", "map", "workflow", "graph"])
def test_a_fallback_may_not_have_the_name_of_a_part_of_its_step(verbs, store, kind, is_interrupted):
    @workflow("inner")
    def inner():
        yield step("b").python(double, args=(1,)).with_rollback(lambda ctx: None)
        yield step("c").python(fail)

    graph = Graph(int).add_node("b", double).add_node("c", lambda n: fail(n)).add_edge("b", "c").add_edge("c", END)
    asked, taken = {
        "parallel": (parallel("a", step("b").python(double, args=(1,)), step("c").python(fail)).must_succeed(), "b"),
        "branch": (branch("a", (yes, step("b").python(fail))), "b"),
        "map": (step("a").map(lambda n: 1 // n, [1, 0]), "1"),
        "workflow": (step("a").subworkflow(inner), "c"),
        "graph": (step("a").subworkflow(graph.set_entry("b").compile("graph"), 1), "b"),
    }[kind]
    interruptions = [KeyboardInterrupt()] if is_interrupted else []

    def handler(ctx: WorkflowContext, failed: StepResult):
        if interruptions:
            raise interruptions.pop()
        return step(taken).python(double, args=(4,))

    @workflow("w")
    def wf():
        yield asked.on_error(handler)

    if is_interrupted:
        with pytest.raises(KeyboardInterrupt):
            verbs.run(wf, store=store, run_id="r")
    with pytest.raises(DuplicateStepNameError, match="give it a name of its own") as caught:
        verbs.run(wf, store=store, run_id="r", if_exists="resume")
    assert (taken, f"a/{taken}") == (caught.value.step_name, caught.value.node_id)
    assert "failed" == store.get_run("r").info.status


def test_a_fallback_that_failed_keeps_its_name_for_the_next_try_of_its_step(verbs, store, work):
    tries: list[int] = []

    def later(n: int) -> int:
        tries.append(n)
        if len(tries) < 3:
            raise ValueError("not yet")
        return n

    @workflow("inner")
    def inner():
        return (yield step("b").python(fail).on_error(lambda ctx, failed: step("c").python(later, args=(3,))))

    @workflow("w")
    def wf():
        return (yield step("a").subworkflow(inner).retry(2, backoff=0)).final_output

    with pytest.raises(StepError):
        verbs.run(wf, store=store, run_id="r")
    assert 3 == verbs.retry(wf, store, "r")


def test_a_handler_may_be_async_under_async_verbs(verbs, store):
    def handler(ctx: WorkflowContext, failed: StepResult):
        return step("other").python(double, args=(4,))

    @workflow("w")
    def wf():
        return (yield step("a").python(fail).on_error(verbs.node(handler)))

    assert 8 == verbs.run(wf, store=store)


def test_skip_on_error_makes_a_skip_of_a_failure_and_keeps_its_text(both_times):
    first, again = both_times(step("a").python(fail, args=(1,)).skip_on_error().as_result())
    assert ("skipped", True, SkipMarker("error_skipped"), "no 1", "ValueError") == (
        first.outcome, first.success, first.output, first.error, first.error_type)  # fmt: skip
    assert first == again


def test_as_result_gives_the_result_of_a_success(both_times):
    first, again = both_times(step("a").python(double, args=(1,)).as_result())
    assert ("a", StepType.PYTHON, True, 2, "succeeded", 1) == (
        first.name, first.step_type, first.success, first.output, first.outcome, first.attempts)  # fmt: skip
    assert first == again


def test_as_result_gives_the_result_of_a_failure_and_the_workflow_goes_on(both_times):
    first, again = both_times(step("a").python(fail, args=(1,)).as_result())
    assert (False, None, "failed", "no 1", "ValueError") == (
        first.success, first.output, first.outcome, first.error, first.error_type)  # fmt: skip
    assert first == again


@pytest.mark.parametrize("is_before", [True, False])
def test_as_result_before_the_kind_is_as_result(verbs, store, is_before):
    asked = step("a").as_result().python(fail) if is_before else step("a").python(fail).as_result()

    @workflow("w")
    def wf():
        return (yield asked).success

    assert False is verbs.run(wf, store=store)


@pytest.mark.parametrize(("must_fail", "outcome"), [(True, "skipped"), (False, "recovered")])
def test_the_order_of_effect_is_fixed_whatever_the_order_of_writing(verbs, store, log, must_fail, outcome):
    def body() -> str:
        log.append(f"call {current().attempt}")
        raise ValueError("no")

    def handler(ctx: WorkflowContext, failed: StepResult):
        log.append(f"handler after {failed.attempts}")
        return step("other").python(fail if must_fail else double, args=(1,))

    def asks(ctx: WorkflowContext) -> bool:
        log.append("when")
        return True

    @workflow("w")
    def wf():
        asked = step("a").as_result().skip_on_error().on_error(handler)
        return (yield asked.retry(2, backoff=0).when(asks).python(body))

    told = verbs.run(wf, store=store)
    assert (outcome, True) == (told.outcome, told.success)
    assert ["when", "call 1", "call 2", "handler after 2"] == log


# -- sub-workflows and graphs


def test_a_sub_workflow_gives_its_output_and_its_result(both_times, work, log):
    @workflow("inner")
    def inner(n: int) -> Steps[int]:
        yield step("a").python(work(double), args=(n,))
        return (yield from step("b").python(work(double), args=(n + 1,)))

    first, again = both_times(step("s").subworkflow(inner, {"n": 1}))
    assert isinstance(first, SubWorkflowInvocationResult)
    assert isinstance(first.workflow_result, WorkflowResult)
    for told in (first, again):
        assert (4, "inner", True) == (
            told.final_output,
            told.workflow_result.workflow_name,
            told.workflow_result.success,
        )
        assert [("a", 2), ("b", 4)] == [(one.name, one.output) for one in told.workflow_result.step_results]
    assert ["double", "double"] == log


def test_sub_workflows_go_deep_in_one_journal_and_are_resumed_inside(verbs, store, work, log):
    cut = Cut()

    @workflow("deepest")
    def deepest(n: int) -> Steps[int]:
        m = yield from step("a").python(work(double), args=(n,))
        yield step("cut").python(cut)
        return m

    @workflow("middle")
    def middle(n: int) -> Steps[int]:
        m = yield from step("a").python(work(double), args=(n,))
        told = yield from step("deep").subworkflow(deepest, {"n": m})
        return told.final_output

    @workflow("outer")
    def outer(n: int) -> Steps[int]:
        m = yield from step("a").python(work(double), args=(n,))
        told = yield from step("mid").subworkflow(middle.bind(m))
        return told.final_output

    with pytest.raises(StepError, match="cut"):
        verbs.run(outer, store=store, run_id="r", n=1)
    assert 8 == verbs.resume(outer, store, "r")
    assert ["double"] * 3 == log
    ids = ["a", "mid/a", "mid/deep/a", "mid/deep/cut", "mid/deep", "mid"]
    assert ids == [info.node_id for info in store.list("r")]


def test_an_inner_workflow_has_a_context_and_inputs_of_its_own(verbs, store):
    @workflow("inner")
    def inner(ctx: WorkflowContext, m: int = 5):
        yield step("a").python(double, args=(m,))
        return [dict(ctx.inputs), list(ctx.results), ctx.run_id]

    @workflow("outer")
    def outer(ctx: WorkflowContext, n: int):
        yield step("b").python(double, args=(n,))
        told = yield step("s").subworkflow(inner)
        return [told.final_output, dict(ctx.inputs), list(ctx.results)]

    inside = [{"m": 5}, ["a"], "r"]
    assert [inside, {"n": 1}, ["b", "s"]] == verbs.run(outer, store=store, run_id="r", n=1)


def test_a_failed_sub_workflow_fails_the_step(verbs, store):
    @workflow("inner")
    def inner():
        yield step("a").python(fail, args=(1,))

    @workflow("outer")
    def outer():
        yield step("s").subworkflow(inner)

    with pytest.raises(StepError, match=r"step 's' of run 'r'.*no 1") as caught:
        verbs.run(outer, store=store, run_id="r")
    assert ("s", "subworkflow") == (caught.value.step_name, caught.value.step_type)


def test_a_sub_workflow_that_ends_itself_fails_the_step_with_its_reason(both_times):
    @workflow("inner")
    def inner():
        yield step("a").python(double, args=(1,))
        raise WorkflowError("sold out")

    first, again = both_times(step("s").subworkflow(inner).as_result())
    assert (False, True) == (first.success, "sold out" in first.error)
    assert first == again


def test_a_graph_is_a_step_whose_nodes_are_recorded_below_it(both_times, work, store, log):
    graph = (
        Graph(dict)
        .add_node("a", work(lambda state: {**state, "a": 1}, "a"))
        .add_node("b", work(lambda state: {**state, "b": 2}, "b"))
        .add_edge("a", "b")
        .add_edge("b", END)
        .set_entry("a")
        .compile("inner")
    )
    first, again = both_times(step("g").subworkflow(graph, {"n": 0}))
    for told in (first, again):
        assert {"n": 0, "a": 1, "b": 2} == told.final_output == told.workflow_result.state
    assert (["a", "b"], ["g/a", "g/b", "g", "cut"]) == (log, [info.node_id for info in store.list("r")])


def test_a_graph_as_a_step_goes_on_where_it_failed(verbs, store, work, log):
    cut = Cut()

    def b(state: dict) -> dict:
        cut()
        return {**state, "b": 2}

    graph = (
        Graph(dict)
        .add_node("a", work(lambda state: {**state, "a": 1}, "a"))
        .add_node("b", work(b))
        .add_edge("a", "b")
        .add_edge("b", END)
        .set_entry("a")
        .compile("inner")
    )

    @workflow("w")
    def wf():
        return (yield step("g").subworkflow(graph, {"n": 0})).final_output

    with pytest.raises(StepError, match=r"step 'g'.*cut"):
        verbs.run(wf, store=store, run_id="r")
    assert {"n": 0, "a": 1, "b": 2} == verbs.resume(wf, store, "r")
    assert ["a", "b", "b"] == log


# -- without a store


def test_without_a_store_every_construct_works(verbs, work):
    @workflow("inner")
    def inner(n: int):
        return (yield step("a").python(work(double), args=(n,)))

    graph = Graph(dict).add_node("n", work(lambda s: {"n": 1}, "n")).add_edge("n", END).set_entry("n").compile("g")

    @workflow("w")
    def wf(ctx: WorkflowContext):
        lock = yield step("object").python(threading.Lock)
        told = [
            (yield step("a").python(work(double), args=(1,)).checkpoint().retry(2).timeout(10)),
            (yield branch("b", (yes, step("x").python(work(double), args=(2,))))).inner_output,
            (yield parallel("p", step("x").python(work(double), args=(3,)), step("y").python(work(fail)))).success,
            (yield step("m").map(work(double), [1, 2])),
            (yield step("s").subworkflow(inner, {"n": 4})).final_output,
            (yield step("g").subworkflow(graph, {})).final_output,
            (yield step("e").python(fail).on_error(lambda c, f: step("o").python(double, args=(5,)))),
            bool((yield step("k").python(fail).skip_on_error())),
            (yield step("w").python(fail).as_result()).success,
            ctx.store is None and bool(ctx.run_id),
        ]
        lock.acquire()
        return told

    assert [2, 4, False, [2, 4], 8, {"n": 1}, 10, False, False, True] == verbs.run(wf)


def test_a_wait_gives_its_reply(verbs, store):
    @workflow("w")
    def wf():
        reply = yield step("w").wait_for("go", payload=int)
        return [reply.payload, reply.timed_out, isinstance(reply, Reply)]

    with pytest.raises(RunSuspended):
        verbs.run(wf, store=store, run_id="r")
    assert "taken" == verbs.call(wf, "signal", store, "r", "go", 3)
    assert [3, False, True] == verbs.resume(wf, store, "r")


# -- breakpoints inside


def nested(work: Any, kind: str) -> Any:
    """A workflow with a step `s` that is a graph, or another workflow, of `n` and `m`."""
    graph = Graph(dict).add_node("n", work(lambda s: {"n": 1}, "n")).add_node("m", work(lambda s: {"n": 2}, "m"))
    compiled = graph.set_entry("n").add_edge("n", "m").add_edge("m", END).compile("g")

    @workflow("inner")
    def inner():
        yield step("n").python(work(double, "n"), args=(1,))
        return (yield step("m").python(work(double, "m"), args=(2,)))

    @workflow("w")
    def wf():
        yield step("m").python(work(double, "top"), args=(1,))
        yield step("s").subworkflow(compiled if kind == "graph" else inner, {})
        return (yield step("t").python(work(double, "t"), args=(2,)))

    return wf


@pytest.mark.parametrize("kind", ["graph", "workflow"])
@pytest.mark.parametrize(
    ("where", "at", "done"), [("stop_before", "s/n", 1), ("stop_before", "s/m", 2), ("stop_after", "s/m", 3)]
)
def test_a_run_stops_inside_a_step_at_the_id_that_its_records_have_and_goes_on(
    verbs, store, work, log, kind, where, at, done
):
    wf = nested(work, kind)
    with pytest.raises(RunStopped, match=f"'{at}'") as caught:
        verbs.run(wf, store=store, run_id="r", **{where: at})
    assert (["top", "n", "m"][:done], at) == (log, caught.value.node_id)
    assert 4 == verbs.resume(wf, store, "r", **{where: at})
    assert ["top", "n", "m", "t"] == log


@pytest.mark.parametrize("kind", ["graph", "workflow"])
def test_a_run_that_goes_on_stops_inside_a_later_step_at_its_first_node_too(verbs, store, work, log, kind):
    wf = nested(work, kind)
    with pytest.raises(RunStopped):
        verbs.run(wf, store=store, run_id="r", stop_before="m")
    with pytest.raises(RunStopped, match="'s/n'"):
        verbs.resume(wf, store, "r", stop_before=["m", "s/n"])
    assert ["top"] == log


@pytest.mark.parametrize("most", [None, 1])
def test_a_map_that_is_gone_on_with_stops_before_the_items_that_it_does_not_go_on_with(verbs, store, work, log, most):
    @workflow("w")
    def wf():
        return (yield step("s").map(work(lambda n: n, "item"), [0, 1, 2], max_parallel=most))

    with pytest.raises(RunStopped, match=r"'s/[01]'"):
        verbs.run(wf, store=store, run_id="r", stop_before=["s/0", "s/1"])
    assert ["item"] == log
    with pytest.raises(RunStopped, match="'s/1'"):
        verbs.resume(wf, store, "r", stop_before=["s/0", "s/1"])
    assert ["item"] * 2 == log
    assert [0, 1, 2] == verbs.resume(wf, store, "r", stop_before=["s/0", "s/1"])
    assert ["item"] * 3 == log


def test_a_graph_inside_that_failed_is_a_recorded_outcome_that_a_resume_goes_on_with(verbs, store, work, log):
    graph = Graph(dict).add_node("n", work(lambda s: 1 / 0, "n")).set_entry("n").add_edge("n", END).compile("g")

    @workflow("w")
    def wf():
        told = yield step("s").as_result().subworkflow(graph, {})
        return told.success, (yield step("t").python(work(double, "t"), args=(2,)))

    with pytest.raises(RunStopped):
        verbs.run(wf, store=store, run_id="r", stop_before="t")
    assert (False, 4) == tuple(verbs.resume(wf, store, "r"))
    assert ["n", "t"] == log
