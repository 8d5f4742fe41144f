"""Attempts, timeouts and concurrency of steps: of a call, and of what is made of others."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from milepost import (
    END,
    BranchResult,
    Graph,
    Retry,
    RunNotResumableError,
    StepError,
    WorkflowContext,
    branch,
    current,
    parallel,
    step,
    workflow,
)
from milepost.errors import RunTimeoutError, StateTypeError
from milepost.testing import FakeClock


def double(n: int) -> int:
    return n * 2


def yes(ctx: WorkflowContext) -> bool:
    return True


class Failing:
    """Raises the first `times` times, each time another text."""

    def __init__(self, times: int, log: list[str] | None = None) -> None:
        self.times = times
        self.count = 0
        self.log = log

    def __call__(self, n: int = 1) -> int:
        self.count += 1
        if self.log is not None:
            self.log.append(f"try {self.count}")
        if self.count <= self.times:
            raise ValueError(f"no {self.count}")
        return n * 2


def failures(store: Any, step_id: str = "a") -> list[dict[str, Any]]:
    return [record.fields() for record in store.read("r", kinds=("failure",)) if record.node_id == step_id]


# -- attempts


def test_a_policy_tries_again_records_each_failure_and_gives_one_result(verbs, store):
    body = Failing(2)

    @workflow("w")
    def wf():
        told = yield step("a").python(body, args=(4,)).retry(3, backoff=0).as_result()
        return [told.output, told.attempts]

    assert [8, 3] == verbs.run(wf, store=store, run_id="r")
    assert [("no 1", 1), ("no 2", 2)] == [(told["message"], told["attempt"]) for told in failures(store)]
    assert [("a", 3)] == [(info.node_id, info.attempt) for info in store.list("r")]
    assert ([8, 3], 3) == (verbs.resume(wf, store, "r"), body.count)


def test_the_policy_of_a_call_serves_steps_without_their_own(verbs, store):
    one, many = Failing(1), Failing(1)

    @workflow("w")
    def wf():
        yield step("a").python(one)
        yield step("b").python(many).retry(1)

    with pytest.raises(StepError, match="step 'b'"):
        verbs.run(wf, store=store, retry=Retry(2, backoff=0))
    assert (2, 1) == (one.count, many.count)


def test_a_step_that_fails_for_good_has_the_last_error_as_cause_and_the_earlier_ones_as_notes(verbs, store):
    @workflow("w")
    def wf():
        yield step("a").python(Failing(9)).retry(3, backoff=0)

    with pytest.raises(
        StepError, match=r"step 'a' of run 'r' failed after 3 failed attempts.*resume or retry"
    ) as caught:
        verbs.run(wf, store=store, run_id="r")
    error = caught.value
    assert isinstance(error.__cause__, ValueError)
    assert ("no 3", 3, "a", "python", "r") == (
        str(error.__cause__), error.attempt, error.step_name, error.step_type, error.run_id)  # fmt: skip
    assert [True, True] == ["no 1" in error.__notes__[0], "no 2" in error.__notes__[1]]
    assert [None, None, True] == [told.get("final") for told in failures(store)]


def test_both_errors_of_a_step_whose_fallback_fails_are_told_with_all_attempts(verbs):
    @workflow("w")
    def wf():
        asked = step("a").python(Failing(9)).retry(2, backoff=0)
        yield asked.on_error(lambda ctx, failed: step("other").python(lambda: 1 / 0))

    with pytest.raises(StepError, match=r"no 2.*division by zero") as caught:
        verbs.run(wf)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    notes = "\n".join(caught.value.__notes__)
    assert [True, True] == ["no 1" in notes, "no 2" in notes]


def test_a_spent_policy_refuses_a_resume_and_retry_begins_a_new_budget(verbs, store):
    body = Failing(2)

    @workflow("w")
    def wf():
        return (yield step("a").python(body).retry(2, backoff=0))

    with pytest.raises(StepError):
        verbs.run(wf, store=store, run_id="r")
    with pytest.raises(RunNotResumableError, match="use retry"):
        verbs.resume(wf, store, "r")
    assert (2, 2) == (verbs.retry(wf, store, "r"), body.count - 1)


@pytest.mark.parametrize("with_store", [True, False])
def test_a_retry_gets_arguments_that_the_failed_attempt_has_not_changed(verbs, store, work, with_store):
    seen: list[Any] = []

    def body(items: list[int], *, more: dict[str, int]) -> int:
        seen.append([list(items), dict(more)])
        items.append(9)
        more["x"] = 9
        if len(seen) < 3:
            raise ValueError("no")
        return len(items)

    @workflow("w")
    def wf():
        return (yield step("a").python(work(body), args=([1],), kwargs={"more": {}}).retry(3, backoff=0))

    assert 2 == verbs.run(wf, **({"store": store} if with_store else {}))
    assert [[[1], {}]] * 3 == seen


def test_what_a_failed_step_changed_reaches_neither_its_fallback_nor_its_record(verbs, store, work):
    def spoil(items: list[int]) -> int:
        items.append(9)
        raise ValueError("no")

    @workflow("w")
    def wf(items: list[int]):
        yield step("a").python(work(spoil), args=(items,)).skip_on_error()
        return "end"

    assert "end" == verbs.run(wf, store=store, run_id="r", items=[1])
    (record,) = [record for record in store.read("r") if record.node_id == "a" and record.kind == "checkpoint"]
    assert "[[1]]" == record.fields()["args"]["text"]
    assert "end" == verbs.resume(wf, store, "r")


def test_the_context_of_an_attempt_tells_which_it_is(verbs, store):
    seen: list[Any] = []

    def body() -> None:
        ctx = current()
        seen.append((ctx.node_id, ctx.attempt, ctx.visit, ctx.idempotency_key, ctx.random(), ctx.now()))
        if ctx.attempt == 1:
            raise ValueError("no")

    @workflow("w")
    def wf():
        yield step("a").python(body).retry(2, backoff=0)
        yield step("b").python(body).as_result()

    verbs.run(wf, store=store, run_id="r")
    first, second, other = seen
    assert (("a", 1, 1), ("a", 2, 1), ("b", 1, 1)) == (first[:3], second[:3], other[:3])
    assert first[3:] == second[3:]
    assert first[3] != other[3]


# -- attempts of what is made of other steps


def test_a_group_that_is_tried_again_does_only_what_failed(verbs, store, log):
    failing = Failing(1)

    @workflow("w")
    def wf():
        good, bad = step("a").python(log.append, args=("a",)), step("b").python(failing, args=(4,))
        return (yield parallel("p", good, bad).must_succeed().retry(2, backoff=0)).get_output("b")

    assert 8 == verbs.run(wf, store=store, run_id="r")
    assert (["a"], 2) == (log, failing.count)
    assert (8, 2) == (verbs.resume(wf, store, "r"), failing.count)


def test_a_branch_that_is_tried_again_keeps_its_choice(verbs, store):
    failing, asked = Failing(1), []

    def once(ctx: WorkflowContext) -> bool:
        asked.append(1)
        return True

    @workflow("w")
    def wf():
        return (yield branch("b", (once, step("x").python(failing, args=(4,)))).retry(2, backoff=0))

    assert BranchResult(0, "x", 8) == verbs.run(wf, store=store, run_id="r")
    assert ([1], 2) == (asked, failing.count)


def test_a_sub_workflow_that_is_tried_again_answers_what_had_succeeded(verbs, store, log):
    failing = Failing(2)

    @workflow("inner")
    def inner():
        yield step("i").python(log.append, args=("i",))
        return (yield step("j").python(failing, args=(4,)))

    @workflow("w")
    def wf():
        return (yield step("s").subworkflow(inner).retry(3, backoff=0)).final_output

    assert 8 == verbs.run(wf, store=store, run_id="r")
    assert (["i"], 3) == (log, failing.count)
    assert 8 == verbs.resume(wf, store, "r")


def test_retries_inside_and_outside_multiply(verbs, store):
    failing = Failing(3)

    @workflow("w")
    def wf():
        inner = step("x").python(failing).retry(2, backoff=0)
        told = yield branch("b", (yes, inner)).retry(2, backoff=0).as_result()
        return [told.output.inner_output, told.attempts]

    assert [2, 2] == verbs.run(wf, store=store, run_id="r")
    assert 4 == failing.count


# -- timeouts


GRACE = 30


class Hurrying(FakeClock):
    """A clock on which a timeout is over once somebody hangs; what is told to stop then has the time that it needs."""

    def __init__(self) -> None:
        super().__init__()
        self.hanging = 0

    def wait(self, wake: threading.Event, seconds: float) -> bool:
        if seconds >= GRACE:
            return wake.wait(20)
        while not wake.wait(0.001):
            if self.hanging:
                self.advance(seconds)
                break
        return wake.is_set()

    async def sleep(self, seconds: float) -> None:
        if seconds >= GRACE:
            await asyncio.sleep(20)
        while seconds > 0 and not self.hanging:
            await asyncio.sleep(0)
        self.advance(max(0, seconds))
        await asyncio.sleep(0)


@pytest.fixture
def hurrying() -> Hurrying:
    return Hurrying()


def hanging(verbs: Any, clock: Hurrying, seen: list[str]) -> Any:
    """A step's function that goes on until it is told to stop."""

    async def coroutine() -> None:
        clock.hanging += 1
        try:
            await asyncio.Event().wait()
        finally:
            clock.hanging -= 1
            seen.append("cancelled")

    def plain() -> None:
        clock.hanging += 1
        while not current().cancelled:
            threading.Event().wait(0.001)
        clock.hanging -= 1
        seen.append("cancelled")

    return coroutine if verbs.has_coroutines else plain


def test_an_attempt_that_takes_too_long_fails_the_step_with_a_timeout_error(verbs, medium, hurrying):
    store, seen = medium.open(clock=hurrying), []

    @workflow("w")
    def wf():
        yield step("a").python(hanging(verbs, hurrying, seen)).timeout(5)

    with pytest.raises(StepError, match="took longer than its timeout of 5 s") as caught:
        verbs.run(wf, store=store, run_id="r", clock=hurrying)
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert (["cancelled"], ["timeout"]) == (seen, [told["op"] for told in failures(store)])


def test_a_timeout_is_per_attempt_and_tried_again(verbs, medium, hurrying):
    store, seen = medium.open(clock=hurrying), []
    hang = hanging(verbs, hurrying, seen)

    def quick() -> int:
        return 1

    async def body() -> Any:
        return await hang() if current().attempt < 3 else quick()

    def plain() -> Any:
        return hang() if current().attempt < 3 else quick()

    @workflow("w")
    def wf():
        return (yield step("a").python(body if verbs.has_coroutines else plain).timeout(5).retry(3, backoff=0))

    assert 1 == verbs.run(wf, store=store, run_id="r", clock=hurrying)
    assert (["cancelled"] * 2, ["timeout"] * 2) == (seen, [told["op"] for told in failures(store)])


def test_a_timeout_is_made_good_like_any_failure(verbs, medium, hurrying):
    store = medium.open(clock=hurrying)

    @workflow("w")
    def wf():
        told = yield step("a").python(hanging(verbs, hurrying, [])).timeout(5).as_result()
        skipped = yield step("b").python(hanging(verbs, hurrying, [])).timeout(5).skip_on_error()
        other = step("other").python(double, args=(2,))
        return [
            told.error_type,
            bool(skipped),
            (yield step("c").python(hanging(verbs, hurrying, [])).timeout(5).on_error(lambda ctx, failed: other)),
        ]

    assert ["TimeoutError", False, 4] == verbs.run(wf, store=store, run_id="r", clock=hurrying)


@pytest.mark.parametrize("depth", [0, 1])
def test_the_time_of_a_step_ends_the_node_of_a_graph_inside_it(verbs, medium, hurrying, depth):
    store, seen = medium.open(clock=hurrying), []
    hang = hanging(verbs, hurrying, seen)

    async def coroutine(state: dict[str, Any]) -> None:
        await hang()

    def plain(state: dict[str, Any]) -> None:
        hang()

    graph = Graph(dict).add_node("x", coroutine if verbs.has_coroutines else plain)
    graph = graph.add_edge("x", END).set_entry("x").compile("g")
    for _ in range(depth):
        graph = Graph(dict).add_subgraph("s", graph).add_edge("s", END).set_entry("s").compile("outer")

    @workflow("w")
    def wf():
        yield step("a").subworkflow(graph, {}).timeout(5)

    with pytest.raises(StepError, match="step 'a' of run 'r' took longer than its timeout of 5 s"):
        verbs.run(wf, store=store, run_id="r", clock=hurrying, run_timeout=8)
    assert ["cancelled"] == seen


@pytest.mark.parametrize("kind", ["parallel", "branch", "subworkflow"])
def test_the_time_of_what_is_made_of_steps_ends_the_call_inside(verbs, medium, hurrying, kind):
    store, seen = medium.open(clock=hurrying), []
    hang = step("x").python(hanging(verbs, hurrying, seen))

    @workflow("inner")
    def inner():
        yield hang

    asked = {
        "parallel": parallel("a", hang, step("y").python(hanging(verbs, hurrying, seen))),
        "branch": branch("a", (yes, hang)),
        "subworkflow": step("a").subworkflow(inner),
    }[kind]

    @workflow("w")
    def wf():
        yield asked.timeout(5)

    with pytest.raises(StepError, match="step 'a' of run 'r' took longer than its timeout of 5 s") as caught:
        verbs.run(wf, store=store, run_id="r", clock=hurrying)
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert {"cancelled"} == set(seen)
    assert ("a", kind) == (caught.value.step_name, caught.value.step_type)


def test_a_group_that_ran_out_of_time_is_made_good(verbs, medium, hurrying):
    store = medium.open(clock=hurrying)

    @workflow("w")
    def wf():
        told = yield parallel("a", step("x").python(hanging(verbs, hurrying, []))).timeout(5).as_result()
        return [told.success, told.error_type]

    assert [False, "TimeoutError"] == verbs.run(wf, store=store, run_id="r", clock=hurrying)


def test_the_timeout_of_a_map_is_each_items(verbs, medium, clock):
    store, seen = medium.open(clock=clock), []

    async def item(n: int) -> int:
        seen.append(current().deadline)
        clock.advance(4)
        return n

    def plain(n: int) -> int:
        seen.append(current().deadline)
        clock.advance(4)
        return n

    @workflow("w")
    def wf():
        return (yield step("m").map(item if verbs.has_coroutines else plain, [1, 2, 3], max_parallel=1).timeout(5))

    assert [1, 2, 3] == verbs.run(wf, store=store, run_id="r", clock=clock)
    assert [5, 5, 5] == seen


def test_the_time_of_the_call_is_over_before_that_of_a_step(verbs, medium, hurrying):
    store = medium.open(clock=hurrying)

    @workflow("w")
    def wf():
        yield step("a").python(hanging(verbs, hurrying, [])).timeout(50).skip_on_error()

    with pytest.raises(RunTimeoutError):
        verbs.run(wf, store=store, run_id="r", clock=hurrying, run_timeout=5)
    assert "interrupted" == store.get_run("r").info.status


# -- at once


class Crowd:
    """Counts how many are inside at once."""

    def __init__(self, verbs: Any, meet: int = 1) -> None:
        self.lock = threading.Lock()
        self.inside = self.most = 0
        self.threads: set[int] = set()
        self.meeting = threading.Barrier(meet, timeout=20)
        self.arrived = 0
        self.meet = meet
        self.call = self._awaited if verbs.has_coroutines else self._called

    def _enter(self) -> None:
        with self.lock:
            self.inside += 1
            self.arrived += 1
            self.most = max(self.most, self.inside)
            self.threads.add(threading.get_ident())

    def _leave(self) -> None:
        with self.lock:
            self.inside -= 1

    def _called(self, n: int) -> int:
        self._enter()
        self.meeting.wait()
        self._leave()
        return n

    async def _awaited(self, n: int) -> int:
        self._enter()
        async with asyncio.timeout(20):
            while self.arrived % self.meet:
                await asyncio.sleep(0)
        self._leave()
        return n


def group(crowd: Crowd, kind: str, count: int, max_parallel: int | None) -> Any:
    if kind == "map":
        return step("g").map(crowd.call, range(count), max_parallel=max_parallel)
    children = [step(f"c{n}").python(crowd.call, args=(n,)) for n in range(count)]
    return parallel("g", *children, max_parallel=max_parallel)


def outputs(told: Any) -> list[int]:
    return told if isinstance(told, list) else [child.output for child in told]


@pytest.mark.parametrize("kind", ["map", "parallel"])
@pytest.mark.parametrize("limit", [1, 2])
def test_max_parallel_bounds_what_runs_at_once_and_lets_that_many(verbs, store, kind, limit):
    crowd = Crowd(verbs, meet=limit)

    @workflow("w")
    def wf():
        return outputs((yield group(crowd, kind, 6, limit)))

    assert [0, 1, 2, 3, 4, 5] == verbs.run(wf, store=store, run_id="r")
    assert limit == crowd.most


@pytest.mark.parametrize("kind", ["map", "parallel"])
def test_the_max_parallel_of_a_call_bounds_every_group(verbs, store, kind):
    crowd = Crowd(verbs, meet=2)

    @workflow("w")
    def wf():
        return outputs((yield group(crowd, kind, 6, 4)))

    assert [0, 1, 2, 3, 4, 5] == verbs.run(wf, store=store, run_id="r", max_parallel=2)
    assert 2 == crowd.most


def test_nested_groups_keep_to_the_max_parallel_of_the_call(verbs, store):
    crowd = Crowd(verbs)

    @workflow("w")
    def wf():
        inner = [step(f"m{k}").map(crowd.call, range(4)) for k in range(3)]
        yield parallel("p", *inner)
        return "end"

    assert "end" == verbs.run(wf, store=store, run_id="r", max_parallel=2)
    assert (12, True) == (crowd.arrived, crowd.most <= 2)


def test_results_come_in_the_given_order_whichever_ends_first(verbs, store):
    done = threading.Event()

    def first() -> str:
        assert done.wait(20)
        return "first"

    async def first_awaited() -> str:
        async with asyncio.timeout(20):
            while not done.is_set():
                await asyncio.sleep(0)
        return "first"

    def second() -> str:
        done.set()
        return "second"

    slow = step("a").python(first_awaited if verbs.has_coroutines else first)

    @workflow("w")
    def wf():
        told = yield parallel("p", slow, step("b").python(second))
        return [child.output for child in told]

    assert ["first", "second"] == verbs.run(wf, store=store, run_id="r")


def test_a_skipped_or_failed_child_gives_its_place_to_the_next(verbs, store, log):
    @workflow("w")
    def wf():
        children = [
            step("a").python(log.append, args=("a",)).when(lambda ctx: False),
            step("b").python(Failing(9)),
            step("c").python(log.append, args=("c",)),
        ]
        return [child.outcome for child in (yield parallel("p", *children, max_parallel=1))]

    assert ["skipped", "failed", "succeeded"] == verbs.run(wf, store=store, run_id="r")
    assert ["c"] == log


@pytest.mark.parametrize("kind", ["map", "parallel"])
def test_a_bounded_group_that_was_interrupted_begins_nothing_more_and_goes_on_with_what_is_left(
    verbs, store, log, kind
):
    interrupted = [True]

    def item(n: int) -> int:
        log.append(str(n))
        if n == 1 and interrupted:
            interrupted.clear()
            raise SystemExit
        return n

    @workflow("w")
    def wf():
        asked = step("g").map(item, range(4), max_parallel=1)
        if kind == "parallel":
            asked = parallel("g", *(step(f"c{n}").python(item, args=(n,)) for n in range(4)), max_parallel=1)
        return outputs((yield asked))

    with pytest.raises(SystemExit):
        verbs.run(wf, store=store, run_id="r")
    assert (["0", "1"], "interrupted") == (log, store.get_run("r").info.status)
    assert [0, 1, 2, 3] == verbs.resume(wf, store, "r")
    assert ["0", "1", "1", "2", "3"] == log


def test_an_output_of_another_type_than_declared_fails_the_step(verbs, store, work):
    def body() -> int:
        return "text"  # type: ignore[return-value]

    @workflow("w")
    def wf():
        yield step("a").python(work(body))

    with pytest.raises(StepError, match="step 'a' of run 'r' failed") as caught:
        verbs.run(wf, store=store, run_id="r")
    assert isinstance(caught.value.__cause__, StateTypeError)
    assert "output" == caught.value.__cause__.path


def test_a_sub_workflow_that_fails_for_good_undoes_once_what_its_attempts_did_once(verbs, store, log):
    @workflow("inner")
    def inner():
        yield step("i").python(log.append, args=("i",)).with_rollback(lambda ctx: log.append("undo i"))
        yield step("j").python(Failing(9))

    @workflow("w")
    def wf():
        yield step("b").python(log.append, args=("b",)).with_rollback(lambda ctx: log.append("undo b"))
        yield step("s").subworkflow(inner).retry(2, backoff=0)

    with pytest.raises(StepError, match="step 's'"):
        verbs.run(wf, store=store, run_id="r")
    assert ["b", "i", "undo i", "undo b"] == log
