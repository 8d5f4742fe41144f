"""What becomes of a run that exists when its id is used again."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from milepost import (
    END,
    Graph,
    InputMismatchError,
    LeaseLost,
    NodeError,
    Retry,
    RunCancelled,
    RunExistsError,
    RunLockedError,
    RunNotResumableError,
)
from milepost.errors import RunStopped, WrongFlowError

THREADS = 16


@dataclass
class Count:
    n: int = 0


def plus(state: Count) -> Count:
    return Count(state.n + 1)


@pytest.fixture
def halted(verbs, store, line):
    graph = line(Count)
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(1), store=store, run_id="r1", stop_after="a")
    return graph


def untouched(store):
    row = store.get_run("r1")
    return store.read("r1"), row.info.status, row.epoch


@pytest.mark.parametrize("mode", ["error", "resume", "retry", "return"])
def test_an_unknown_run_starts_whatever_is_asked_for(verbs, store, line, mode):
    assert Count(3) == verbs.run(line(Count), Count(), store=store, run_id="r1", if_exists=mode)


@pytest.mark.parametrize("is_finished", [True, False])
def test_by_default_a_run_that_exists_is_refused_with_its_status(verbs, store, halted, log, is_finished):
    if is_finished:
        verbs.resume(halted, store, "r1")
    before, ran = untouched(store), list(log)
    with pytest.raises(RunExistsError, match="r1") as caught:
        verbs.run(halted, Count(1), store=store, run_id="r1")
    status = "finished" if is_finished else "interrupted"
    assert ("r1", status) == (caught.value.run_id, caught.value.status)
    assert (before, ran) == (untouched(store), log)


@pytest.mark.parametrize("is_finished", [True, False])
def test_another_input_is_refused_and_both_are_shown(verbs, store, halted, log, is_finished):
    if is_finished:
        verbs.resume(halted, store, "r1")
    before, ran = untouched(store), list(log)
    with pytest.raises(RunExistsError) as exists:
        verbs.run(halted, Count(2), store=store, run_id="r1")
    for mode in ("resume", "retry", "return"):
        with pytest.raises(InputMismatchError) as caught:
            verbs.run(halted, Count(2), store=store, run_id="r1", if_exists=mode)
        assert ("r1", ("state",)) == (caught.value.run_id, caught.value.names)
        assert caught.value.expected_hash != caught.value.actual_hash
        for text in (str(exists.value), str(caught.value)):
            assert '{"n":1}' in text
            assert '{"n":2}' in text
    assert (before, ran) == (untouched(store), log)


@pytest.mark.every_store
def test_the_recorded_input_stands_where_inputs_are_not_compared(verbs, store, halted):
    asked = {"if_exists": "resume", "compare_inputs": False}
    assert Count(4) == verbs.run(halted, Count(2), store=store, run_id="r1", **asked)
    assert Count(4) == verbs.run(halted, Count(2), store=store, run_id="r1", **asked)


def test_resume_goes_on_and_gives_the_stored_result_of_a_finished_run(verbs, store, halted, log):
    for _ in range(2):
        assert Count(4) == verbs.run(halted, Count(1), store=store, run_id="r1", if_exists="resume")
    assert ["a", "b", "c"] == log


def test_another_flow_s_run_is_refused_before_its_input_is_compared(verbs, store, halted, line):
    for mode in ("resume", "retry", "return"):
        for options in ({}, {"compare_inputs": False}):
            with pytest.raises(WrongFlowError):
                verbs.run(line(Count, name="other"), Count(9), store=store, run_id="r1", if_exists=mode, **options)


def test_retry_runs_again_what_failed_with_fresh_attempts(verbs, store, line, log):
    is_broken = [True]

    def b(state: Count) -> Count:
        if is_broken[0]:
            raise ValueError("no")
        return plus(state)

    graph = line(Count, "abc", {"b": b}, {"b": {"retry": Retry(2, backoff=0)}})
    with pytest.raises(NodeError):
        verbs.run(graph, Count(), store=store, run_id="r1")
    with pytest.raises(RunNotResumableError):
        verbs.run(graph, Count(), store=store, run_id="r1", if_exists="resume")
    is_broken[0] = False
    assert Count(3) == verbs.run(graph, Count(), store=store, run_id="r1", if_exists="retry")
    assert Count(3) == verbs.run(graph, Count(), store=store, run_id="r1", if_exists="retry")
    assert ["a", "b", "b", "b", "c"] == log


def test_retry_resumes_a_run_that_did_not_end(verbs, store, halted, log):
    assert Count(4) == verbs.run(halted, Count(1), store=store, run_id="r1", if_exists="retry")
    assert ["a", "b", "c"] == log


def test_return_gives_the_result_of_a_run_that_has_ended_and_changes_nothing(verbs, store, halted, log):
    verbs.resume(halted, store, "r1")
    before, ran = untouched(store), list(log)
    result = verbs.run(halted, Count(1), store=store, run_id="r1", if_exists="return", full=True)
    assert (Count(4), "finished") == (result.state, result.status)
    assert (before, ran) == (untouched(store), log)


def test_return_raises_the_error_of_a_run_that_failed_as_it_was_recorded(verbs, store, line):
    graph = line(Count, "ab", {"b": lambda state: 1 / 0})
    with pytest.raises(NodeError):
        verbs.run(graph, Count(), store=store, run_id="r1")
    before = untouched(store)
    with pytest.raises(NodeError, match="ZeroDivisionError") as caught:
        verbs.run(graph, Count(), store=store, run_id="r1", if_exists="return")
    assert ("r1", "b", None) == (caught.value.run_id, caught.value.node_id, caught.value.__cause__)
    assert (Count(1), 1) == (caught.value.state, caught.value.visit)
    assert before == untouched(store)


def test_return_raises_whatever_ended_the_run(verbs, store, line):
    graph = line(Count)
    with pytest.raises(Exception, match="limit"):
        verbs.run(graph, Count(), store=store, run_id="r1", max_iterations=1)
    with pytest.raises(Exception, match="MaxIterationsError"):
        verbs.run(graph, Count(), store=store, run_id="r1", if_exists="return")


def test_return_of_a_cancelled_run_says_so(verbs, store, halted):
    store.request_cancel("r1", "not needed", 10)
    with pytest.raises(RunCancelled) as caught:
        verbs.run(halted, Count(1), store=store, run_id="r1", if_exists="return")
    assert "not needed" == caught.value.reason


def test_return_waits_for_the_end_of_a_run_that_somebody_executes(verbs, medium, clock, log):
    store = medium.open(clock=clock)
    entered, gate = threading.Event(), threading.Event()

    def a(state: Count) -> Count:
        log.append("a")
        entered.set()
        assert gate.wait(10)
        return plus(state)

    graph = Graph(Count).add_node("a", verbs.node(a)).add_edge("a", END).set_entry("a").compile()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(verbs.run, graph, Count(), store=store, run_id="r1")
        assert entered.wait(10)
        second = pool.submit(verbs.run, graph, Count(), store=store, run_id="r1", if_exists="return", clock=clock)
        clock.wait_for_sleepers(1)
        assert not second.done()
        gate.set()
        assert Count(1) == first.result(10)
        clock.advance(1)
        assert Count(1) == second.result(10)
    assert ["a"] == log


@pytest.mark.parametrize("mode", ["error", "resume", "return"])
def test_many_starts_of_one_id_execute_it_once(verbs, medium, mode):
    store, ran, lock = medium.open(), [], threading.Lock()

    def counted(name):
        def body(state: Count) -> Count:
            with lock:
                ran.append(name)
            return plus(state)

        return verbs.node(body)

    graph = Graph(Count).add_node("a", counted("a")).add_node("b", counted("b")).add_edge("a", "b")
    compiled = graph.add_edge("b", END).set_entry("a").compile()
    barrier = threading.Barrier(THREADS)

    def begin(_: int):
        barrier.wait(10)
        try:
            return verbs.run(compiled, Count(), store=store, run_id="r1", if_exists=mode)
        except (RunExistsError, RunLockedError) as exc:
            return exc

    with ThreadPoolExecutor(THREADS) as pool:
        outcomes = list(pool.map(begin, range(THREADS)))
    results = [outcome for outcome in outcomes if isinstance(outcome, Count)]
    errors = {type(outcome) for outcome in outcomes} - {Count}
    assert (["a", "b"], {2}) == (ran, {result.n for result in results})
    allowed = {"error": {RunExistsError}, "resume": {RunLockedError}, "return": set()}[mode]
    assert errors <= allowed
    if mode == "error":
        assert 1 == len(results)
    if mode == "return":
        assert THREADS == len(results)


def test_several_recoverers_of_one_dead_run_execute_it_once(verbs, medium, clock):
    timed, ran, lock, is_dying = medium.open(clock=clock), [], threading.Lock(), [True]

    def b(state: Count) -> Count:
        if is_dying[0]:
            raise verbs.Killed
        with lock:
            ran.append("b")
        return plus(state)

    graph = Graph(Count).add_node("b", verbs.node(b)).add_edge("b", END).set_entry("b").compile()
    verbs.crash(graph, timed, "r1", Count())
    is_dying[0] = False
    stores = [medium.open(clock=clock) for _ in range(4)]
    barrier = threading.Barrier(len(stores))

    def recover(store):
        barrier.wait(10)
        try:
            return verbs.resume(graph, store, "r1")
        except (RunLockedError, LeaseLost) as exc:
            return exc

    with ThreadPoolExecutor(len(stores)) as pool:
        outcomes = list(pool.map(recover, stores))
    assert ["b"] == ran
    assert {Count(1).n} == {outcome.n for outcome in outcomes if isinstance(outcome, Count)}
    assert "finished" == timed.get_run("r1").info.status


def test_one_event_loop_may_start_one_id_many_times_at_once(store):
    ran = []

    async def a(state: Count) -> Count:
        ran.append(state.n)
        await asyncio.sleep(0)
        return plus(state)

    graph = Graph(Count).add_node("a", a).add_edge("a", END).set_entry("a").compile()

    async def main():
        starts = (graph.arun(Count(), store=store, run_id="r1") for _ in range(20))
        return await asyncio.gather(*starts, return_exceptions=True)

    outcomes = asyncio.run(main())
    assert (1, 19) == (outcomes.count(Count(1)), sum(isinstance(o, RunExistsError) for o in outcomes))
    assert [0] == ran
