"""Turns and forks of runs whose graphs have forks, maps, graphs and waits in them, crashed everywhere."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypedDict

import pytest

from milepost import END, CompiledGraph, Graph, MemoryStore, RunNotResumableError, RunSuspended
from milepost.executor.effects import Call
from milepost.model.record import CHECKPOINT, OWNER
from milepost.testing import FakeClock, Stepper, crashtest
from milepost.verbs import Job, flow_of

TURN = {"if_exists": "continue"}


class Seen(TypedDict):
    seen: Annotated[list[str], operator.add]


@dataclass
class Count:
    n: int = 0


def note(name: str) -> Any:
    return lambda state: {"seen": [f"{name}{len(state['seen'])}"]}


def forked() -> CompiledGraph[Any]:
    """A fork at the entry, one of whose branches is longer."""
    graph = Graph(Seen, partial=True)
    for name in ("a", "left", "right", "more", "join"):
        graph.add_node(name, note(name))
    graph.add_edge("a", "left").add_edge("a", "right").add_edge("right", "more")
    graph.add_edge("left", "join").add_edge("more", "join").add_edge("join", END)
    return graph.set_entry("a").compile("forked")


def mapped() -> CompiledGraph[Any]:
    """A map and a graph, with nothing before them."""
    inner = Graph(Count).add_node("x", lambda s: Count(s.n + 1)).add_node("y", lambda s: Count(s.n + 2))
    inner.add_edge("x", "y").add_edge("y", END).set_entry("x")
    graph = Graph(Count)
    graph.add_subgraph("sub", inner.compile("inner"))
    graph.add_map("each", lambda s: [1, 2], lambda item: item * 10, merge=lambda s, found: Count(s.n + sum(found)))
    graph.add_edge("sub", "each").add_edge("each", END)
    return graph.set_entry("sub").compile("mapped")


def waiting() -> CompiledGraph[Any]:
    """A wait at the entry."""
    graph = Graph(Count).add_wait("ask", "go", apply=lambda s, reply: replace(s, n=s.n + reply.payload))
    graph.add_node("b", lambda s: Count(s.n + 1)).add_edge("ask", "b").add_edge("b", END)
    return graph.set_entry("ask").compile("waiting")


GRAPHS = {"forked": (forked, Seen(seen=[]), {"seen": ["and"]}), "mapped": (mapped, Count(), Count(100))}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_turn_that_dies_at_any_effect_ends_as_if_undisturbed(name: str):
    make, begun, turn = GRAPHS[name]
    report = crashtest(make(), begun, turns=[turn])
    assert 2 * len(report.effects) == report.scenarios == report.crashes


def test_a_turn_that_waits_and_dies_at_any_effect_ends_as_if_undisturbed():
    report = crashtest(waiting(), Count(), turns=[Count(100)], signals={"go": 5})
    assert report.crashes > 0


def fails_at(call: int, graph: CompiledGraph[Any], store: MemoryStore, clock: FakeClock, state: Any) -> bool:
    """Begin a turn in which this call of a function fails; False if there are fewer calls."""
    job = Job(flow_of(graph), store, "r1", TURN, {"clock": clock}, None)
    stepper = Stepper(job.routine(state), clock=clock)
    calls = 0
    while not stepper.is_done:
        is_call = isinstance(stepper.pending, Call)
        calls += is_call
        if is_call and calls == call:
            stepper.fail(OSError("no"))
        else:
            stepper.step()
    return stepper.error is not None


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_turn_that_failed_at_any_call_is_superseded_by_the_next_one(name: str, is_first: bool):
    make, begun, turn = GRAPHS[name]
    graph, state, call = make(), begun if is_first else turn, 0
    while True:
        call += 1
        clock = FakeClock()
        store = MemoryStore(clock=clock)
        if not is_first:
            graph.run(begun, store=store, run_id="r1")
        if not fails_at(call, graph, store, clock, state):
            break
        result = graph.run(state, store=store, run_id="r1", full=True, **TURN)
        assert "OSError: no" in result.resumed.superseded
        assert result.state == graph.resume(store, "r1")
        assert store.verify("r1").ok
        graph.run(begun, store=store, run_id="plain")
        if not is_first:
            graph.run(turn, store=store, run_id="plain", **TURN)
        assert graph.resume(store, "plain") == result.state
        visits = [(info.node_id, info.visit) for info in store.history("r1")]
        assert len(visits) == len(set(visits))
    assert call > 3


@pytest.mark.parametrize("name", GRAPHS)
def test_a_fork_after_any_record_ends_as_its_origin_did(name: str):
    make, begun, turn = GRAPHS[name]
    graph, store = make(), MemoryStore()
    graph.run(begun, store=store, run_id="r1")
    result = graph.run(turn, store=store, run_id="r1", if_exists="continue")
    before = store.export("r1")
    ends = {}
    for record in store.read("r1", kinds=(CHECKPOINT,)):
        fork = graph.fork_run(store, "r1", record.node_id, record.visit)
        assert store.verify(fork).ok
        assert f"r1#{record.sequence}" == store.get_run(fork).info.tags["milepost.forked_from"]
        ended = graph.resume(store, fork)
        ends[record.sequence] = ended
        visits = [(info.node_id, info.visit) for info in store.history(fork)]
        assert len(visits) == len(set(visits))
        assert store.verify(fork).ok
    assert before == store.export("r1")
    turn_at = store.read("r1", kinds=(OWNER,))[0].sequence
    of_turn = [ended for sequence, ended in ends.items() if sequence > turn_at]
    of_beginning = [ended for sequence, ended in ends.items() if sequence < turn_at]
    assert 2 <= len(of_turn) == len(of_beginning)
    assert all(result == ended for ended in of_turn)
    assert all(of_beginning[0] == ended != result for ended in of_beginning)


def test_a_state_before_or_inside_a_fork_is_overridden_by_a_fork_of_the_run():
    graph, store = forked(), MemoryStore()
    graph.run(Seen(seen=[]), store=store, run_id="r1")
    fork = graph.fork_run(store, "r1", "left", state_override=lambda s: {"seen": [*s["seen"], "w"]})
    assert "w" in graph.resume(store, fork)["seen"]
    fork = graph.fork_run(store, "r1", "a", state_override=lambda s: {"seen": ["z"]})
    assert "z" == graph.resume(store, fork)["seen"][0]


def test_a_run_that_waits_is_refused_a_turn_and_can_be_forked():
    graph, store = waiting(), MemoryStore()
    with pytest.raises(RunSuspended):
        graph.run(Count(), store=store, run_id="r1")
    with pytest.raises(RunNotResumableError, match="waits for ask#1"):
        graph.run(Count(), store=store, run_id="r1", if_exists="continue")
    graph.signal(store, "r1", "go", 5)
    fork = graph.fork_run(store, "r1")
    assert Count(6) == graph.resume(store, "r1")
    with pytest.raises(RunSuspended):
        graph.resume(store, fork)
    graph.signal(store, fork, "go", 7)
    assert Count(8) == graph.resume(store, fork)
    after = graph.fork_run(store, fork, "ask")
    assert Count(8) == graph.resume(store, after)
    with pytest.raises(RunSuspended):
        graph.run(Count(100), store=store, run_id=after, if_exists="continue")
    graph.signal(store, after, "go", 1)
    assert Count(102) == graph.resume(store, after)
