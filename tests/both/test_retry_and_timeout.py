"""Attempts: how many there are, what lies between them, and how one that takes too long ends."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from milepost import END, Checkpoint, Graph, NodeError, Retry, StepError, step, workflow
from milepost.errors import NodeTimeoutError, RouterError, RunTimeoutError
from milepost.events import AttemptFailed, NodeOverdue
from milepost.model.record import parse_time
from milepost.testing import FakeClock


@dataclass
class Count:
    n: int = 0


@dataclass
class Items:
    items: list[int] = field(default_factory=list)


def plus(state: Count) -> Count:
    return Count(state.n + 1)


def failing(times: int, then=plus, error=ValueError):
    """A body that raises the first `times` times."""
    left = [times]

    def body(state):
        if left[0]:
            left[0] -= 1
            raise error(f"no, {left[0]} left")
        return then(state)

    return body


class Interrupting(FakeClock):
    """A clock on which waiting is interrupted."""

    def wait(self, wake: threading.Event, seconds: float) -> bool:
        raise KeyboardInterrupt

    async def sleep(self, seconds: float) -> None:
        raise KeyboardInterrupt


def failures(store, run_id: str = "r1") -> list[dict]:
    return [record.fields() for record in store.read(run_id, kinds=("failure",))]


@pytest.mark.every_store
def test_without_a_policy_there_is_one_attempt(verbs, store, line, log):
    with pytest.raises(NodeError):
        verbs.run(line(Count, bodies={"b": failing(1)}), Count(), store=store, run_id="r1")
    assert (["a", "b"], 1) == (log, len(failures(store)))


def test_a_policy_tries_again_and_each_failure_is_recorded(verbs, store, line, log):
    graph = line(Count, bodies={"b": failing(2)}, options={"b": {"retry": Retry(3, backoff=0)}})
    assert Count(3) == verbs.run(graph, Count(), store=store, run_id="r1")
    assert ["a", "b", "b", "b", "c"] == log
    assert [1, 2] == [fields["attempt"] for fields in failures(store)]
    assert [("b", 1, 3)] == [(i.node_id, i.visit, i.attempt) for i in store.list("r1") if i.node_id == "b"]
    assert 3 == Checkpoint.decode(store.load("r1", "b")).attempt


def test_a_failure_tells_how_long_its_attempt_took_and_how_many_the_policy_allows(verbs, medium, jumping, line):
    def slow(state):
        jumping.advance(1.5)
        raise ValueError("no")

    retried = line(Count, "ab", {"b": slow}, {"b": {"retry": Retry(2, backoff=8, jitter=False)}})
    once = line(Count, "a", {"a": slow})

    @workflow("w")
    def steps():
        yield step("b").python(slow, args=(1,)).retry(2, backoff=8)

    store = medium.open(clock=jumping)
    for run_id, flow, value in (("graph", retried, Count()), ("once", once, Count()), ("steps", steps, None)):
        with pytest.raises((NodeError, StepError)):
            verbs.run(flow, *([] if value is None else [value]), store=store, run_id=run_id, clock=jumping)
    told = {run_id: [(f["duration_ms"], f.get("max_attempts")) for f in failures(store, run_id)]
            for run_id in ("graph", "once", "steps")}  # fmt: skip
    assert {"graph": [(1500.0, 2)] * 2, "once": [(1500.0, None)], "steps": [(1500.0, 2)] * 2} == told


def test_the_policy_of_a_call_serves_nodes_without_their_own(verbs, line, log):
    graph = line(Count, "ab", {"a": failing(1), "b": failing(1)}, {"b": {"retry": Retry(1)}})
    with pytest.raises(NodeError) as caught:
        verbs.run(graph, Count(), retry=Retry(2, backoff=0))
    assert ("b", ["a", "a", "b"]) == (caught.value.node_id, log)


def test_a_node_that_fails_for_good_tells_the_earlier_errors_as_notes(verbs, store, line):
    graph = line(Count, "a", {"a": failing(9)}, {"a": {"retry": Retry(3, backoff=0)}})
    with pytest.raises(NodeError, match="3 failed attempts") as caught:
        verbs.run(graph, Count(), store=store, run_id="r1")
    error = caught.value
    assert ("no, 6 left", 3) == (str(error.__cause__), error.attempt)
    assert [True, True] == ["no, 8 left" in error.__notes__[0], "no, 7 left" in error.__notes__[1]]
    assert [None, None, True] == [fields.get("final") for fields in failures(store)]
    assert "retry" in str(error)


@pytest.mark.parametrize("policy", [{"retry_on": (KeyError,)}, {"give_up_on": (ValueError,)}])
def test_an_error_that_the_policy_excludes_is_not_tried_again(verbs, line, log, policy):
    graph = line(Count, "a", {"a": failing(1)}, {"a": {"retry": Retry(3, backoff=0, **policy)}})
    with pytest.raises(NodeError):
        verbs.run(graph, Count())
    assert ["a"] == log


@pytest.mark.parametrize("with_store", [True, False])
def test_a_retry_gets_a_fresh_state(verbs, store, line, with_store):
    seen = []

    def b(state: Items) -> Items:
        seen.append(list(state.items))
        state.items.append(2)
        if len(seen) == 1:
            raise ValueError("no")
        return state

    graph = line(
        Items, "ab", {"a": lambda state: Items([1]), "b": b}, {"b": {"retry": Retry(2, backoff=0)}}, name="items"
    )
    saved = {"store": store, "run_id": "r1"} if with_store else {}
    assert Items([1, 2]) == verbs.run(graph, Items(), **saved)
    assert [[1], [1]] == seen
    if with_store:
        assert {"items": [1]} == Checkpoint.decode(store.load("r1", "a")).state


def test_a_retry_without_a_store_gets_a_copy_of_what_cannot_be_encoded(verbs):
    seen = []

    def a(state: dict) -> dict:
        seen.append(dict(state))
        state["extra"] = 1
        if len(seen) == 1:
            raise ValueError("no")
        return state

    graph = Graph(dict).add_node("a", verbs.node(a), retry=Retry(2, backoff=0)).add_edge("a", END).set_entry("a")
    thing = {"odd": object}
    assert {"odd": object, "extra": 1} == verbs.run(graph.compile(), thing)
    assert [{"odd": object}, {"odd": object}] == seen


def test_failures_add_up_over_processes_and_a_crash_eats_no_try(verbs, medium, timed, line, log):
    class Body:
        is_dying = False

        def __call__(self, state: Count) -> Count:
            if self.is_dying:
                raise verbs.Killed
            raise ValueError("no")

    body, attempts = Body(), []

    def b(ctx, state: Count) -> Count:
        attempts.append(ctx.attempt)
        body.is_dying = len(attempts) == 3
        return body(state)

    graph = line(Count, "ab", {"b": b}, {"b": {"retry": Retry(3, backoff=0)}})
    verbs.crash(graph, timed, "r1", Count())
    assert 3 == len(attempts)
    with pytest.raises(NodeError) as caught:
        verbs.resume(graph, timed, "r1")
    assert ["a", *"bbbb"] == log
    expected = [1, 2, 3, 4] if medium.has_lease_end else [1, 2, 3, 3]
    assert (expected, expected[-1]) == (attempts, caught.value.attempt)
    assert 3 == len(failures(timed))


def test_a_resume_waits_out_what_is_left_of_a_back_off(verbs, medium, jumping, line):
    store = medium.open(clock=jumping)
    policy = Retry(3, backoff=50, factor=1, jitter=False)
    graph = line(Count, "a", {"a": failing(1)}, {"a": {"retry": policy}})

    with pytest.raises(KeyboardInterrupt):
        verbs.run(graph, Count(), store=store, run_id="r1", clock=Interrupting())
    assert "interrupted" == store.get_run("r1").info.status
    jumping.advance(30)
    assert Count(1) == verbs.resume(graph, store, "r1", clock=jumping)
    assert 20 == pytest.approx(sum(wait for wait in jumping.waits if wait > 0))


@pytest.mark.parametrize(("passed", "left"), [(60, 60.0), (-60, 120.0), (150, 0.0)])
def test_what_is_left_of_a_long_back_off_is_bounded_by_what_the_policy_chose(
    verbs, medium, jumping, line, passed, left
):
    store = medium.open(clock=jumping)
    policy = Retry(3, backoff=120, max_delay=120, jitter=False)
    graph = line(Count, "ab", {"b": failing(1)}, {"b": {"retry": policy}})
    with pytest.raises(KeyboardInterrupt):
        verbs.run(graph, Count(), store=store, run_id="r1", clock=Interrupting())
    began = parse_time(failures(store)[0]["timestamp"]).timestamp()
    jumping.set(datetime.fromtimestamp(began + passed, UTC))
    jumping.waits.clear()
    assert Count(2) == verbs.resume(graph, store, "r1", clock=jumping)
    assert left == pytest.approx(sum(jumping.waits))


def test_a_cancel_ends_a_back_off(verbs, medium, jumping, line, log):
    store = medium.open(clock=jumping)

    def a(state: Count) -> Count:
        store.request_cancel("r1", "not needed")
        raise ValueError("no")

    graph = line(Count, "a", {"a": a}, {"a": {"retry": Retry(3, backoff=50)}})
    with pytest.raises(Exception, match="not needed"):
        verbs.run(graph, Count(), store=store, run_id="r1", clock=jumping)
    assert (["a"], "cancelled") == (log, store.get_run("r1").info.status)


# -- timeouts ----------------------------------------------------------------------------------------------


def hanging(verbs, gate: threading.Event, seen: list):
    """A node that goes on until it is told to stop, or its gate opens."""

    async def coroutine(ctx, state: Count) -> Count:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return state

    def plain(ctx, state: Count) -> Count:
        while not ctx.cancelled and not gate.wait(0.001):
            pass
        seen.append("cancelled" if ctx.cancelled else "gate")
        return Count(99)

    return coroutine if verbs.has_coroutines else plain


def test_an_attempt_that_takes_too_long_is_a_timeout_error_of_its_node(verbs, medium, jumping):
    store, gate, seen = medium.open(clock=jumping), threading.Event(), []
    graph = Graph(Count).add_node("a", hanging(verbs, gate, seen), timeout=5).add_edge("a", END).set_entry("a")
    with pytest.raises(NodeTimeoutError) as caught:
        verbs.run(graph.compile(), Count(7), store=store, run_id="r1", clock=jumping)
    error = caught.value
    assert isinstance(error, TimeoutError)
    assert ("r1", "a", "timeout", 5, Count(7)) == (error.run_id, error.node_id, error.op, error.timeout, error.state)
    assert ["timeout"] == [fields["op"] for fields in failures(store)]
    assert [] == store.list("r1")


def test_a_timeout_is_tried_again_and_a_late_result_is_discarded(verbs, medium, clock):
    store, gate, seen = medium.open(clock=clock), threading.Event(), []
    attempts = []
    hang = hanging(verbs, gate, seen)

    if verbs.has_coroutines:

        async def node(ctx, state: Count) -> Count:
            attempts.append(ctx.attempt)
            return await hang(ctx, state) if ctx.attempt == 1 else plus(state)
    else:

        def node(ctx, state: Count) -> Count:
            attempts.append(ctx.attempt)
            return hang(ctx, state) if ctx.attempt == 1 else plus(state)

    graph = Graph(Count).add_node("a", node, timeout=5, retry=Retry(2, backoff=0)).add_edge("a", END).set_entry("a")

    def move() -> None:
        clock.wait_for_sleepers(1)
        clock.advance(5)

    mover = threading.Thread(target=move)
    mover.start()
    assert Count(1) == verbs.run(graph.compile(), Count(), store=store, run_id="r1", clock=clock)
    mover.join()
    assert ([1, 2], ["cancelled"]) == (attempts, seen)


def test_a_plain_node_that_ignores_its_timeout_is_told_of_and_fails_the_run(verbs, medium, jumping):
    if verbs.has_coroutines:
        pytest.skip("a coroutine is cancelled")
    store, gate, events = medium.open(clock=jumping), threading.Event(), []

    def stubborn(state: Count) -> Count:
        gate.wait(10)
        return Count(99)

    graph = Graph(Count).add_node("a", stubborn, timeout=5, retry=Retry(3, backoff=0)).add_edge("a", END)
    try:
        with pytest.raises(NodeTimeoutError, match="still runs"):
            verbs.run(
                graph.set_entry("a").compile(), Count(), store=store, run_id="r1", clock=jumping, hooks=[events.append]
            )
    finally:
        gate.set()
    assert [5, 30] == jumping.waits[:2]
    assert [NodeOverdue, AttemptFailed] == [type(e) for e in events if isinstance(e, (NodeOverdue, AttemptFailed))]
    assert (1, "failed", []) == (len(failures(store)), store.get_run("r1").info.status, store.list("r1"))


def test_the_deadline_tells_what_is_left_of_the_attempt(verbs, medium, clock):
    store, seen = medium.open(clock=clock), []

    def a(ctx, state: Count) -> Count:
        seen.append(ctx.deadline)
        clock.advance(2)
        seen.append(ctx.deadline)
        return plus(state)

    def b(ctx, state: Count) -> Count:
        seen.append(ctx.deadline)
        return plus(state)

    graph = Graph(Count).add_node("a", verbs.node(a), timeout=5).add_node("b", verbs.node(b)).add_edge("a", "b")
    compiled = graph.add_edge("b", END).set_entry("a").compile()
    verbs.run(compiled, Count(), store=store, clock=clock)
    assert [5, 3, None] == seen


def test_a_timeout_error_of_user_code_is_no_timeout_of_the_node(verbs, store, line):
    def a(state: Count) -> Count:
        raise TimeoutError("mine")

    with pytest.raises(NodeError) as caught:
        verbs.run(line(Count, "a", {"a": a}), Count(), store=store, run_id="r1", timeout=60)
    assert (NodeError, "execute", "mine") == (type(caught.value), caught.value.op, str(caught.value.__cause__))


def test_the_time_of_a_call_ends_it_interrupted_and_a_resume_has_its_own(verbs, medium, clock, line, log):
    store = medium.open(clock=clock)

    def b(state: Count) -> Count:
        clock.advance(10)
        return plus(state)

    graph = line(Count, "abc", {"b": b})
    with pytest.raises(RunTimeoutError) as caught:
        verbs.run(graph, Count(), store=store, run_id="r1", run_timeout=10, clock=clock)
    assert ("r1", 10) == (caught.value.run_id, caught.value.timeout)
    assert "interrupted" == store.get_run("r1").info.status
    done = ["a", "b"] if len(store.list("r1")) == 2 else ["a", "b", "b"]
    assert Count(3) == verbs.resume(graph, store, "r1", run_timeout=30, clock=clock)
    assert [*done, "c"] == log


def test_the_time_of_a_call_ends_a_back_off(verbs, medium, jumping, line):
    store = medium.open(clock=jumping)
    graph = line(Count, "a", {"a": failing(1)}, {"a": {"retry": Retry(2, backoff=100, jitter=False)}})
    with pytest.raises(RunTimeoutError):
        verbs.run(graph, Count(), store=store, run_id="r1", run_timeout=10, clock=jumping)
    assert "interrupted" == store.get_run("r1").info.status
    assert Count(1) == verbs.resume(graph, store, "r1", clock=jumping)


def test_a_call_out_of_time_leaves_its_node_to_the_resume(verbs, medium, jumping):
    store, gate, seen = medium.open(clock=jumping), threading.Event(), []
    graph = Graph(Count).add_node("a", hanging(verbs, gate, seen)).add_edge("a", END).set_entry("a").compile()
    with pytest.raises(RunTimeoutError):
        verbs.run(graph, Count(), store=store, run_id="r1", run_timeout=10, clock=jumping)
    assert ([], [], "interrupted") == (store.list("r1"), failures(store), store.get_run("r1").info.status)


def test_a_router_is_not_tried_again(verbs, store):
    asked = []

    def choose(state: Count) -> str:
        asked.append(state.n)
        raise ValueError("no")

    graph = Graph(Count).add_node("a", verbs.node(plus), retry=Retry(3, backoff=0))
    compiled = graph.add_conditional_edge("a", choose, [END]).set_entry("a").compile()
    with pytest.raises(RouterError):
        verbs.run(compiled, Count(), store=store, run_id="r1")
    assert [1] == asked


def test_a_state_error_of_a_node_is_tried_again_like_any_other(verbs, store, line, log):
    answers = iter([None, Count(5)])
    graph = line(Count, "a", {"a": lambda state: next(answers)}, {"a": {"retry": Retry(2, backoff=0)}})
    assert Count(5) == verbs.run(graph, dataclasses.replace(Count()), store=store, run_id="r1")
    assert ["a", "a"] == log
