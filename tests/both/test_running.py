"""A graph runs from its entry to END, and its journal tells what happened."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field

import pytest

from milepost import END, Checkpoint, Graph, NodeError, RunNotFoundError, RunResult, SerializeStateError
from milepost.errors import (
    AsyncNodeError,
    MaxIterationsError,
    OptionError,
    RouterError,
    RunIDRequiredError,
    StateTypeError,
)


@dataclass
class Count:
    n: int = 0


class Opaque:
    pass


@dataclass
class Odd:
    thing: Opaque = field(default_factory=Opaque)


def plus(state: Count) -> Count:
    return Count(state.n + 1)


def kinds(store, run_id: str = "r1") -> list[str]:
    return [record.kind for record in store.read(run_id)]


def test_a_run_without_a_store_gives_the_final_state(verbs, line):
    assert Count(3) == verbs.run(line(Count), Count())


@pytest.mark.every_store
def test_a_run_leaves_one_checkpoint_for_each_node_executed(verbs, store, line, log):
    assert Count(3) == verbs.run(line(Count), Count(), store=store, run_id="r1")
    assert ["a", "b", "c"] == log
    assert ["a", "b", "c"] == [info.node_id for info in store.history("r1")]
    assert [1, 2, 3] == [info.sequence for info in store.history("r1")]
    assert ["start", "checkpoint", "checkpoint", "checkpoint", "finish"] == kinds(store)
    assert "finished" == store.get_run("r1").info.status


def test_a_checkpoint_tells_where_the_run_came_from_and_goes_on(verbs, store, line):
    verbs.run(line(Count), Count(), store=store, run_id="r1")
    read = [Checkpoint.decode(store.load("r1", node)) for node in "abc"]
    assert [("", "b"), ("a", "c"), ("b", END)] == [(c.prev_node_id, c.next_node) for c in read]
    assert [{"n": 1}, {"n": 2}, {"n": 3}] == [c.state for c in read]
    assert [1, 2, 3] == [c.iteration for c in read]


def test_the_last_checkpoint_and_the_end_are_one_append(verbs, medium, line):
    batches = []

    class Noting:
        def append(self, batch):
            batches.extend([record.kind for record in append.records] for append in batch)
            return super().append(batch)

    verbs.run(line(Count, "ab"), Count(), store=medium.open(Noting), run_id="r1")
    assert [["checkpoint"], ["checkpoint", "finish"]] == batches


def test_the_last_failure_and_the_end_are_one_append(verbs, medium, line):
    batches = []

    class Noting:
        def append(self, batch):
            batches.extend([record.kind for record in append.records] for append in batch)
            return super().append(batch)

    with pytest.raises(NodeError):
        verbs.run(line(Count, "a", {"a": lambda s: 1 / 0}), Count(), store=medium.open(Noting), run_id="r1")
    assert [["failure", "finish"]] == batches


def test_full_gives_a_result_with_the_run_id_and_the_iterations(verbs, store, line):
    result = verbs.run(line(Count), Count(), store=store, run_id="r1", full=True)
    assert RunResult(state=Count(3), run_id="r1", status="finished", iterations=3) == result


def test_a_run_id_is_made_where_none_is_given(verbs, store, line):
    result = verbs.run(line(Count), Count(), store=store, full=True)
    assert [result.run_id] == [info.run_id for info in store.list_runs()]
    assert verbs.run(line(Count), Count(), full=True).run_id


def test_run_ids_that_are_made_sort_by_time(verbs, store, line):
    made = []
    for _ in range(3):
        made.append(verbs.run(line(Count), Count(), store=store, full=True).run_id)
        time.sleep(0.002)  # they tell milliseconds
    assert sorted(made) == made


@pytest.mark.parametrize("run_id", ["", "   "])
def test_an_empty_run_id_is_refused_before_anything_runs(verbs, store, line, log, run_id):
    with pytest.raises(RunIDRequiredError):
        verbs.run(line(Count), Count(), store=store, run_id=run_id)
    assert ([], []) == (log, store.list_runs())


def test_a_run_id_that_is_no_str_is_a_type_error_on_every_verb(verbs, store, line):
    graph = line(Count)
    with pytest.raises(TypeError, match="run id"):
        verbs.run(graph, Count(), store=store, run_id=7)
    for verb in ("resume", "retry", "plan"):
        with pytest.raises(TypeError, match="run id"):
            getattr(verbs, verb)(graph, store, 7)
    with pytest.raises(TypeError, match="run id"):
        verbs.resume_from(graph, store, 7, "a")


def test_a_sync_verb_refuses_coroutines_by_name_before_anything_runs(store, log):
    async def fetch(state: Count) -> Count:
        log.append("fetch")
        return state

    async def choose(state: Count) -> str:
        return END

    graph = Graph(Count).add_node("plus", plus).add_node("fetch", fetch).add_edge("plus", "fetch")
    compiled = graph.add_conditional_edge("fetch", choose, [END]).set_entry("plus").compile()
    for begin in (
        lambda: compiled.run(Count(), store=store),
        lambda: compiled.stream(Count(), store=store),
        lambda: compiled.resume(store, "r1"),
    ):
        with pytest.raises(AsyncNodeError, match="arun") as caught:
            begin()
        assert ("fetch", "router of 'fetch'") == caught.value.names
    assert ([], []) == (log, store.list_runs())


def test_a_router_chooses_the_way_and_may_lead_back(verbs, store):
    def choose(state: Count) -> str:
        return "more" if state.n < 3 else "done"

    graph = (
        Graph(Count)
        .add_node("work", verbs.node(plus))
        .add_conditional_edge("work", verbs.node(choose), {"more": "work", "done": END})
        .set_entry("work")
        .compile()
    )
    assert Count(3) == verbs.run(graph, Count(), store=store, run_id="r1")
    assert [1, 2, 3] == [info.visit for info in store.history("r1")]
    assert [("work", 3)] == [(info.node_id, info.visit) for info in store.list("r1")]


@pytest.mark.parametrize("answer", ["", "nowhere", None, 7, []])
def test_a_router_that_answers_with_no_target_is_a_router_error(verbs, store, answer):
    graph = Graph(Count).add_node("a", verbs.node(plus)).add_conditional_edge("a", lambda state: answer, ["a", END])
    with pytest.raises(RouterError) as caught:
        verbs.run(graph.set_entry("a").compile(), Count(), store=store, run_id="r1")
    error = caught.value
    assert ("r1", "a", "a", "route", answer) == (
        error.run_id,
        error.node_id,
        error.from_node,
        error.op,
        error.returned,
    )
    assert Count(1) == error.state
    assert "failed" == store.get_run("r1").info.status


def test_a_router_without_declared_targets_may_not_answer_with_an_unknown_node(verbs, store):
    graph = Graph(Count).add_node("a", verbs.node(plus)).add_conditional_edge("a", lambda state: "nowhere")
    with pytest.raises(RouterError, match="nowhere"):
        verbs.run(graph.set_entry("a").compile(), Count(), store=store, run_id="r1")


def test_a_router_that_raises_is_a_router_error_with_the_original_as_cause(verbs):
    graph = Graph(Count).add_node("a", verbs.node(plus)).add_conditional_edge("a", lambda state: 1 / 0, [END])
    with pytest.raises(RouterError) as caught:
        verbs.run(graph.set_entry("a").compile(), Count())
    assert ZeroDivisionError is type(caught.value.__cause__)
    assert Count(1) == caught.value.state


def test_a_node_that_raises_is_a_node_error_with_the_original_as_cause(verbs, store, line):
    wrong = ValueError("order was cancelled")

    def fail(state: Count) -> Count:
        raise wrong

    with pytest.raises(NodeError, match="order was cancelled") as caught:
        verbs.run(line(Count, bodies={"b": fail}), Count(), store=store, run_id="r1")
    error = caught.value
    assert wrong is error.__cause__
    assert ("r1", "b", "execute", 1, 1) == (error.run_id, error.node_id, error.op, error.visit, error.attempt)
    assert Count(1) == error.state
    assert ["start", "checkpoint", "failure", "finish"] == kinds(store)
    info = store.get_run("r1").info
    assert ("failed", True) == (info.status, "order was cancelled" in info.reason)


def test_without_a_store_an_error_carries_run_node_and_state_too(verbs, line):
    with pytest.raises(NodeError) as caught:
        verbs.run(line(Count, bodies={"b": lambda s: 1 / 0}), Count())
    assert caught.value.run_id
    assert ("b", Count(1)) == (caught.value.node_id, caught.value.state)


@pytest.mark.parametrize("with_store", [True, False])
def test_the_iteration_limit_error_carries_the_last_state(verbs, store, line, with_store):
    saved = {"store": store} if with_store else {}
    with pytest.raises(MaxIterationsError) as caught:
        verbs.run(line(Count), Count(), max_iterations=2, **saved)
    assert ("b", Count(2), 2) == (caught.value.last_node_id, caught.value.state, caught.value.max)


@pytest.mark.parametrize("returned", [None, 7, {"n": 1}])
def test_a_node_that_returns_no_state_is_refused_and_the_run_stays_readable(verbs, store, line, returned):
    graph = line(Count, bodies={"b": lambda state: returned})
    with pytest.raises(StateTypeError) as caught:
        verbs.run(graph, Count(), store=store, run_id="r1")
    assert ("r1", "b", "Count") == (caught.value.run_id, caught.value.node_id, caught.value.expected)
    assert ["a"] == [info.node_id for info in store.list("r1")]
    assert {"n": 1} == Checkpoint.decode(store.load("r1", "a")).state


def test_a_field_that_contradicts_its_type_is_refused_at_its_node(verbs, store, log):
    @dataclass
    class Tagged:
        tags: list[str] = field(default_factory=list)

    is_broken = [True]

    def b(state: Tagged) -> Tagged:
        log.append("b")
        return Tagged(None if is_broken[0] else ["x"])

    def passed(name: str):
        def body(state: Tagged) -> Tagged:
            log.append(name)
            return state

        return verbs.node(body)

    graph = Graph(Tagged).add_node("a", passed("a")).add_node("b", verbs.node(b)).add_node("c", passed("c"))
    compiled = graph.add_edge("a", "b").add_edge("b", "c").add_edge("c", END).set_entry("a").compile()
    with pytest.raises(StateTypeError, match="tags") as caught:
        verbs.run(compiled, Tagged(), store=store, run_id="r1")
    assert "b" == caught.value.node_id
    assert (["a"], ["a"]) == ([i.node_id for i in store.list("r1")], [i.node_id for i in store.history("r1")])
    assert "continue" == verbs.plan(compiled, store, "r1").verdict
    is_broken[0] = False
    assert Tagged(["x"]) == verbs.resume(compiled, store, "r1")
    assert ["a", "b", "b", "c"] == log


def test_a_state_type_that_cannot_be_recorded_is_refused_before_the_first_node(verbs, store, log):
    def a(state: Odd) -> Odd:
        log.append("a")
        return state

    graph = Graph(Odd).add_node("a", verbs.node(a)).add_edge("a", END).set_entry("a").compile()
    assert ["field_not_recordable"] == [warning.code for warning in graph.warnings]
    with pytest.raises(SerializeStateError, match="Opaque") as caught:
        verbs.run(graph, Odd(), store=store, run_id="r1")
    assert ([], []) == (log, store.list_runs())
    assert ("r1", "state.thing") == (caught.value.run_id, caught.value.path)
    assert Odd is type(verbs.run(graph, Odd()))


def test_an_input_of_another_type_is_refused_before_anything_is_written(verbs, store, line, log):
    with pytest.raises(StateTypeError):
        verbs.run(line(Count), {"n": 1}, store=store, run_id="r1")
    assert ([], []) == (log, store.list_runs())


def test_an_input_that_is_too_large_is_refused_before_anything_is_written(verbs, store, line, log):
    with pytest.raises(SerializeStateError, match="max_state_size") as caught:
        verbs.run(line(Count), Count(10**30), store=store, run_id="r1", max_state_size=20)
    assert "r1" == caught.value.run_id
    assert ([], []) == (log, store.list_runs())


def test_plain_nodes_of_an_awaited_run_do_not_block_the_event_loop(store):
    gate = threading.Event()

    def wait(state: Count) -> Count:
        assert gate.wait(10)
        return plus(state)

    graph = Graph(Count).add_node("wait", wait).add_edge("wait", END).set_entry("wait").compile()

    async def main() -> Count:
        running = asyncio.ensure_future(graph.arun(Count(), store=store))
        await asyncio.sleep(0)
        gate.set()
        return await running

    assert Count(1) == asyncio.run(main())


def test_threads_that_run_nodes_are_daemons():
    found = []

    def look(state: Count) -> Count:
        found.append(threading.current_thread().daemon)
        return state

    graph = Graph(Count).add_node("look", look).add_edge("look", END).set_entry("look").compile()
    asyncio.run(graph.arun(Count()))
    graph.run(Count(), timeout=60)
    assert [True, True] == found


def test_one_graph_runs_many_runs_at_once(store):
    async def step(state: Count) -> Count:
        await asyncio.sleep(0)
        return plus(state)

    graph = Graph(Count).add_node("a", step).add_node("b", step).add_edge("a", "b").add_edge("b", END)
    compiled = graph.set_entry("a").compile()

    async def main() -> list[Count]:
        return await asyncio.gather(*(compiled.arun(Count(n), store=store, run_id=f"r{n}") for n in range(20)))

    assert [Count(n + 2) for n in range(20)] == asyncio.run(main())
    assert {"finished"} == {info.status for info in store.list_runs()}
    assert all(4 == len(store.read(f"r{n}")) for n in range(20))


def test_tags_of_a_call_are_in_the_run_row(verbs, store, line):
    verbs.run(line(Count), Count(), store=store, run_id="r1", tags={"tenant": "acme"})
    assert {"tenant": "acme"} == store.get_run("r1").info.tags
    with pytest.raises(TypeError, match="tags"):
        verbs.run(line(Count), Count(), store=store, run_id="r2", tags={"n": 1})
    assert ["r1"] == [info.run_id for info in store.list_runs()]


def test_a_run_without_a_store_takes_no_option_that_needs_one(verbs, line):
    with pytest.raises(OptionError, match="store"):
        verbs.run(line(Count), Count(), if_exists="resume")


def test_an_unknown_option_and_one_out_of_range_are_refused(verbs, store, line):
    for wrong in (
        {"nonsense": 1},
        {"max_iterations": 0},
        {"max_iterations": 100_001},
        {"max_iterations": True},
        {"if_exists": "maybe"},
        {"on_locked": "maybe"},
        {"timeout": -1},
        {"run_timeout": 0},
        {"lease": None},
        {"retry": 3},
        {"hooks": [7]},
        {"stop_before": "nowhere"},
        {"revalidate": 7},
    ):
        with pytest.raises(OptionError) as caught:
            verbs.run(line(Count), Count(), store=store, **wrong)
        assert caught.value.option in {*wrong, "stop_before"}
    assert [] == store.list_runs()


def test_a_verb_on_an_unknown_run_leaves_nothing_behind(verbs, store, line, log):
    graph = line(Count)
    for verb in (verbs.resume, verbs.retry, verbs.plan):
        with pytest.raises(RunNotFoundError, match="nope") as caught:
            verb(graph, store, "nope")
        assert "nope" == caught.value.run_id
    with pytest.raises(RunNotFoundError):
        verbs.resume_from(graph, store, "nope", "a")
    assert ([], []) == (log, store.list_runs())


def test_a_first_run_has_no_resume_info(verbs, store, line):
    assert verbs.run(line(Count), Count(), store=store, full=True).resumed is None
