"""Branches that meet at a map, a graph, a wait or a timer, where they are merged as they are at a node.

The graphs are written as edges of two letters each; the node "j" is of each kind in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from forking import few

from milepost import END, Engine, Graph, NodeError, RunSuspended
from milepost.errors import AsyncNodeError, MergeConflictError, StateTypeError
from milepost.reducers import total


@dataclass
class Trip:
    seen: tuple[str, ...] = ()
    cost: int = 0
    told: str = ""


def going(name: str) -> Callable[[Trip], Trip]:
    def go(state: Trip) -> Trip:
        return replace(state, seen=(*state.seen, name), cost=state.cost + 1)

    return go


def united(base: Trip, branches: dict[str, Trip]) -> Trip:
    seen = [name for state in branches.values() for name in state.seen[len(base.seen) :]]
    return Trip((*base.seen, *seen), base.cost + sum(state.cost - base.cost for state in branches.values()))


def told(state: Trip, answer: Any) -> Trip:
    return replace(state, told=str(answer))


def inner(state_type: Any, body: Callable[[Any], Any], name: str) -> Any:
    return Graph(state_type).add_node("i", body).add_edge("i", END).set_entry("i").compile(name)


def as_node(graph, verbs, merge):
    return graph.add_node("j", verbs.node(lambda state: state), merge=merge)


def as_map(graph, verbs, merge):
    return graph.add_map("j", lambda state: state.seen, verbs.node(str.upper), merge=told, merge_branches=merge)


def as_graph(graph, verbs, merge):
    return graph.add_subgraph("j", inner(Trip, verbs.node(lambda state: state), "same"), merge=merge)


def as_other_graph(graph, verbs, merge):
    other = inner(dict, verbs.node(lambda state: state), "other")
    return graph.add_subgraph("j", other, into=lambda state: {"seen": list(state.seen)}, out=told, merge=merge)


def as_wait(graph, verbs, merge):
    apply = lambda state, reply: told(state, reply.payload)  # noqa: E731
    return graph.add_wait("j", "go", apply=apply, prompt=lambda state: state.cost, merge=merge)


def as_timer(graph, verbs, merge):
    return graph.add_timer("j", duration=60, merge=merge)


KINDS = [as_node, as_map, as_graph, as_other_graph, as_wait, as_timer]


@pytest.fixture(params=KINDS, ids=lambda add: add.__name__)
def join(request):
    return request.param


@pytest.fixture
def option(join):
    """How the argument is called that merges."""
    return "merge_branches=" if join is as_map else "merge="


@pytest.fixture
def graph(verbs, join, log):
    """Build a graph from edges; `bodies` by node, others count one more trip."""

    def build(merge: Any, edges: str = "fa fb aj bj", bodies: Any = None, **options: Any) -> Any:
        built = Graph(Trip, **options)
        for node in sorted({*edges.replace(" ", "")} - {"j"}):
            built.add_node(node, verbs.node((bodies or {}).get(node, going(node))))
        join(built, verbs, merge)

        def end(state: Trip) -> Trip:
            log.append("".join(state.seen))
            return state

        for source, target in edges.split():
            built.add_edge(source, target)
        return built.add_node("z", end).add_edge("j", "z").add_edge("z", END).set_entry("f").compile("trips")

    return build


@pytest.fixture
def walk(verbs, timed, clock):
    """Call a verb for a graph, and answer what it waits for: the final state."""
    engine = Engine(timed, clock=clock)

    def through(verb: str, flow: Any, *args: Any, **options: Any) -> Any:
        try:
            return verbs.call(engine, verb, flow, *args, **options)
        except RunSuspended as parked:
            (wait,) = parked.waiting_for
        clock.advance(seconds=60)
        if wait.signal is not None:
            assert 3 == wait.prompt, "the prompt is asked of what the branches became"
            engine.signal("r", "go", "yes")
        return verbs.resume(engine, flow, "r")

    return through


def recorded(store) -> list[str]:
    return [info.node_id for info in store.history("r") if info.node_id in "fab"]


@few
def test_a_function_merges_before_the_join_begins(verbs, graph, walk, log):
    result = walk("run", graph(verbs.node(united)), Trip(), run_id="r")
    assert (tuple("fab"), 3) == (result.seen, result.cost)
    assert ["fab"] == log


@few
def test_reducers_merge_field_by_field(graph, walk, log):
    only_counting = lambda state: replace(state, cost=state.cost + 1)  # noqa: E731
    result = walk("run", graph({"cost": total}, bodies={"a": only_counting}), Trip(), run_id="r")
    assert (tuple("fb"), 3) == (result.seen, result.cost)
    assert ["fb"] == log


@few
def test_updates_of_a_graph_of_parts_are_reduced_in_the_order_of_the_edges(graph, walk, log):
    bodies = {name: lambda state, name=name: {"seen": (name,), "cost": 1} for name in "ab"}
    reducers = {"seen": lambda seen, new: (*seen, *new), "cost": total}
    given = {
        "reducers": reducers,
        "partial": True,
        "bodies": {**bodies, "f": lambda state: {"cost": 1, "seen": ("f",)}},
    }
    assert 3 == walk("run", graph(None, **given), Trip(), run_id="r").cost
    assert ["fab"] == log


@few
def test_a_merge_that_failed_is_done_again_and_no_branch_is(verbs, graph, walk, timed, log):
    merged: list[str] = []

    def fail_once(base: Trip, branches: dict[str, Trip]) -> Trip:
        merged.extend(branches)
        if len(merged) == 2:
            raise OSError("not yet")
        return united(base, branches)

    flow = graph(verbs.node(fail_once))
    with pytest.raises(NodeError, match="could not be merged at node 'j': OSError: not yet") as caught:
        walk("run", flow, Trip(), run_id="r")
    assert ("merge", "j", 1, []) == (caught.value.op, caught.value.node_id, caught.value.visit, log)
    assert 3 == walk("resume", flow, "r").cost
    assert (["fab"], list("abf")) == (log, sorted(recorded(timed)))


@few
def test_a_merge_that_gives_no_state_is_refused_by_the_name_of_its_argument(graph, walk, option):
    with pytest.raises(StateTypeError, match=f"^{option} of node 'j' of run 'r': it returned None"):
        walk("run", graph(lambda base, branches: None), Trip(), run_id="r")


@few
def test_a_conflict_tells_what_to_give_the_join(graph, walk, option):
    with pytest.raises(MergeConflictError, match=f"give the field a reducer, or {option} to node 'j'"):
        walk("run", graph({"cost": total}), Trip(), run_id="r")


@few
def test_a_join_that_is_run_again_has_what_the_branches_became(graph, walk, timed, log):
    flow = graph(united)
    walk("run", flow, Trip(), run_id="r")
    assert 3 == walk("resume_from", flow, "r", "j", rerun=True).cost
    assert (["fab", "fab"], list("abf")) == (log, sorted(recorded(timed)))


@few
def test_an_inner_fork_may_meet_there_too(graph, walk, log):
    bodies = {name: lambda state, name=name: {"seen": (name,), "cost": 1} for name in "abcd"}
    bodies["f"] = lambda state: {"cost": -1}
    reducers = {"seen": lambda seen, new: (*seen, *new), "cost": total}
    flow = graph(None, "fa fb aj bc bd cj dj", bodies, reducers=reducers, partial=True)
    assert 3 == walk("run", flow, Trip(), run_id="r").cost
    assert ["abcd"] == log


def test_a_coroutine_that_merges_is_refused_by_name_under_a_sync_verb():
    async def later(base: Trip, branches: dict[str, Trip]) -> Trip:
        return united(base, branches)

    graph = Graph(Trip).add_node("f", going("f")).add_node("a", going("a"))
    graph.add_edge("f", "a").add_edge("f", "j").add_edge("a", "j").add_edge("j", END).set_entry("f")
    flow = graph.add_timer("j", duration=1, merge=later).compile("later")
    with pytest.raises(AsyncNodeError, match="merge of 'j'"):
        flow.run(Trip())
