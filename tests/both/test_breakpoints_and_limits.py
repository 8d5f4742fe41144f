"""Where a run stops because it was told to, and how it goes on from there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from milepost import END, Checkpoint, Graph, Retry
from milepost.errors import MaxIterationsError, OptionError, RunStopped, RunTimeoutError


@dataclass
class Count:
    n: int = 0


@dataclass
class Items:
    items: list[int] = field(default_factory=list)


def plus(state: Count) -> Count:
    return Count(state.n + 1)


def loop(verbs, log, times: int):
    def b(state: Count) -> Count:
        log.append("b")
        return plus(state)

    graph = Graph(Count).add_node("b", verbs.node(b))
    graph.add_conditional_edge("b", lambda state: "b" if state.n < times else END, ["b", END])
    return graph.set_entry("b").compile()


@pytest.mark.every_store
def test_stop_before_ends_the_run_at_that_boundary_and_not_again_on_resume(verbs, store, line, log):
    graph = line(Count)
    with pytest.raises(RunStopped, match="resume") as caught:
        verbs.run(graph, Count(), store=store, run_id="r1", stop_before="b")
    assert ("r1", "b", Count(1), ["a"]) == (caught.value.run_id, caught.value.node_id, caught.value.state, log)
    assert "interrupted" == store.get_run("r1").info.status
    assert Count(3) == verbs.resume(graph, store, "r1", stop_before="b")
    assert ["a", "b", "c"] == log


def test_stop_before_the_entry_stops_before_anything_runs(verbs, store, line, log):
    graph = line(Count)
    with pytest.raises(RunStopped) as caught:
        verbs.run(graph, Count(5), store=store, run_id="r1", stop_before="a")
    assert (Count(5), []) == (caught.value.state, log)
    assert Count(8) == verbs.resume(graph, store, "r1", stop_before="a")


def test_stop_after_ends_the_run_when_that_node_is_saved(verbs, store, line, log):
    graph = line(Count)
    with pytest.raises(RunStopped) as caught:
        verbs.run(graph, Count(), store=store, run_id="r1", stop_after="b")
    assert ("b", Count(2)) == (caught.value.node_id, caught.value.state)
    assert ["a", "b"] == [info.node_id for info in store.list("r1")]
    assert Count(3) == verbs.resume(graph, store, "r1", stop_after="b")


def test_stop_after_the_last_node_is_the_end(verbs, store, line):
    assert Count(3) == verbs.run(line(Count), Count(), store=store, run_id="r1", stop_after="c")
    assert "finished" == store.get_run("r1").info.status


def test_several_breakpoints_stop_a_run_at_each(verbs, store, line, log):
    graph, stops = line(Count, "abcd"), {"stop_before": ["b", "d"], "stop_after": {"b"}}
    with pytest.raises(RunStopped, match="before node 'b'"):
        verbs.run(graph, Count(), store=store, run_id="r1", **stops)
    with pytest.raises(RunStopped, match="after node 'b'"):
        verbs.resume(graph, store, "r1", **stops)
    with pytest.raises(RunStopped, match="before node 'd'"):
        verbs.resume(graph, store, "r1", **stops)
    assert Count(4) == verbs.resume(graph, store, "r1", **stops)
    assert ["a", "b", "c", "d"] == log


def test_a_breakpoint_in_a_loop_stops_at_every_visit(verbs, store, log):
    graph = loop(verbs, log, 3)
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=store, run_id="r1", stop_before="b")
    for _ in range(2):
        with pytest.raises(RunStopped):
            verbs.resume(graph, store, "r1", stop_before="b")
    assert Count(3) == verbs.resume(graph, store, "r1", stop_before="b")


def test_with_full_a_breakpoint_gives_a_result_instead_of_an_error(verbs, store, line):
    graph = line(Count)
    result = verbs.run(graph, Count(), store=store, run_id="r1", stop_after="b", full=True)
    assert (Count(2), "interrupted", "r1", 2) == (result.state, result.status, result.run_id, result.iterations)
    result = verbs.resume(graph, store, "r1", stop_before="c", full=True)
    assert (Count(3), "finished") == (result.state, result.status)


def test_a_breakpoint_works_without_a_store(verbs, line):
    with pytest.raises(RunStopped) as caught:
        verbs.run(line(Count), Count(), stop_after="b")
    assert Count(2) == caught.value.state


def test_a_breakpoint_at_a_node_that_is_not_there_is_refused(verbs, store, line):
    for option in ("stop_before", "stop_after"):
        with pytest.raises(OptionError, match="nope"):
            verbs.run(line(Count), Count(), store=store, **{option: "nope"})
    assert [] == store.list_runs()


# -- iterations --------------------------------------------------------------------------------------------


def test_the_iteration_limit_ends_a_loop_as_failed(verbs, store, log):
    with pytest.raises(MaxIterationsError) as caught:
        verbs.run(loop(verbs, log, 10**9), Count(), store=store, run_id="r1", max_iterations=7)
    error = caught.value
    assert ("r1", 7, "b", Count(7), 7) == (error.run_id, error.max, error.last_node_id, error.state, len(log))
    assert isinstance(error, RuntimeError)
    info = store.get_run("r1").info
    assert ("failed", True) == (info.status, "7" in info.reason)


def test_the_limit_is_a_thousand_by_default_and_may_be_none(verbs, log):
    with pytest.raises(MaxIterationsError) as caught:
        verbs.run(loop(verbs, log, 10**9), Count())
    assert (1000, 1000) == (caught.value.max, len(log))
    assert Count(1200) == verbs.run(loop(verbs, log, 1200), Count(), max_iterations=None)


def test_iterations_go_on_counting_over_resumes(verbs, store, log):
    graph = loop(verbs, log, 6)
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=store, run_id="r1", stop_after="b")
    with pytest.raises(MaxIterationsError):
        verbs.resume(graph, store, "r1", max_iterations=3)
    assert 3 == len(log)
    with pytest.raises(MaxIterationsError):
        verbs.resume(graph, store, "r1", max_iterations=5)
    assert 5 == len(log)
    result = verbs.resume(graph, store, "r1", max_iterations=None, full=True)
    assert (Count(6), 6) == (result.state, result.iterations)
    iterations = [Checkpoint.decode(store.load("r1", "b", visit)).iteration for visit in range(1, 7)]
    assert [1, 2, 3, 4, 5, 6] == iterations


def test_failed_attempts_are_no_iterations(verbs, store, line):
    left = [2]

    def b(state: Count) -> Count:
        if left[0]:
            left[0] -= 1
            raise ValueError("no")
        return plus(state)

    graph = line(Count, "abc", {"b": b}, {"b": {"retry": Retry(3, backoff=0)}})
    assert 3 == verbs.run(graph, Count(), store=store, max_iterations=3, full=True).iterations


# -- time and isolation ------------------------------------------------------------------------------------


def test_the_time_of_a_call_may_be_a_timedelta(verbs, medium, clock, line):
    store = medium.open(clock=clock)

    def a(state: Count) -> Count:
        clock.advance(3)
        return plus(state)

    with pytest.raises(RunTimeoutError) as caught:
        verbs.run(line(Count, "ab", {"a": a}), Count(), store=store, run_timeout=timedelta(seconds=2), clock=clock)
    assert 2.0 == caught.value.timeout


@pytest.mark.parametrize("has_store", [True, False])
def test_the_time_of_a_stream_begins_with_its_first_event(verbs, medium, clock, line, has_store):
    store = medium.open(clock=clock)
    options = {"run_timeout": 5, "clock": clock, **({"store": store, "run_id": "r1"} if has_store else {})}
    graph = line(Count)
    stream = graph.astream(Count(), **options) if verbs.is_async else graph.stream(Count(), **options)
    clock.advance(100)

    async def collect():
        return [event async for event in stream]

    events = asyncio.run(collect()) if verbs.is_async else list(stream)
    assert ("finished", 0) == (events[-1].status, events[-1].total_duration_ms)
    if has_store:
        assert clock.time() == store.get_run("r1").info.created_at.timestamp()
        assert store.read("r1")[0].fields()["timestamp"] == store.read("r1")[1].fields()["timestamp"]


def test_no_limit_lets_a_loop_run_thirty_thousand_times():
    """For async verbs the loop is the same code, and a thread for each call takes its time."""
    graph = Graph(Count).add_node("b", plus)
    graph.add_conditional_edge("b", lambda state: "b" if state.n < 30_000 else END, ["b", END])
    assert Count(30_000) == graph.set_entry("b").compile().run(Count(), max_iterations=None)


@pytest.mark.parametrize("with_store", [True, False])
def test_isolate_gives_every_node_a_copy(verbs, store, line, with_store):
    kept = []

    def keeping(state: Items) -> Items:
        kept.append(state)
        state.items.append(len(kept))
        return state

    given = Items([0])
    saved = {"store": store} if with_store else {}
    graph = line(Items, "abc", dict.fromkeys("abc", keeping))
    result = verbs.run(graph, given, isolate=True, **saved)
    assert Items([0, 1, 2, 3]) == result
    assert [Items([0]), Items([0, 1]), Items([0, 1, 2]), Items([0, 1, 2, 3])] == [given, *kept]


def test_without_isolation_a_node_gets_the_object_that_the_node_before_returned(verbs, store, line):
    seen: list[Items] = []

    def keeping(state: Items) -> Items:
        seen.append(state)
        return state

    given, graph = Items(), line(Items, "abc", dict.fromkeys("abc", keeping))
    verbs.run(graph, given, store=store)
    assert [id(seen[0])] * 3 == [*map(id, seen)]
    assert seen[0] is not given
    verbs.run(graph, given)
    assert [id(given)] * 3 == [*map(id, seen[3:])]
