"""Random graphs: what compiles, runs to END and nowhere else; what differs, is told."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import GraphError
from milepost.executor.flow import END, START, Unit
from milepost.graph.builder import CompiledGraph, Graph
from milepost.graph.topology import Topology

IDS = ["a", "b", "c", "d", "e"]

Edges = dict[str, list[str]]
Routes = dict[str, list[str] | None]


def unused(state: Any) -> Any:
    return state


places = st.sampled_from([*IDS, END])
wild_edges = st.dictionaries(
    st.sampled_from([*IDS, "x", START, END]), st.lists(st.sampled_from([*IDS, END, "x"]), max_size=2), max_size=6
)
wild_routes = st.dictionaries(
    st.sampled_from([*IDS, "x"]),
    st.none() | st.lists(st.sampled_from([*IDS, END, "x"]), min_size=1, max_size=3),
    max_size=4,
)


@st.composite
def likely(draw: Callable[[Any], Any]) -> tuple[list[str], Edges, Routes, str]:
    """Graphs that often compile: one way on from each node, chosen among what is there."""
    nodes = draw(st.lists(st.sampled_from(IDS), min_size=1, unique=True))
    there = st.sampled_from([*nodes, END])
    edges: Edges = {}
    routes: Routes = {}
    for node in nodes:
        if draw(st.booleans()):
            edges[node] = [draw(there)]
        else:
            routes[node] = draw(st.none() | st.lists(there, min_size=1, max_size=3, unique=True))
    return nodes, edges, routes, draw(st.sampled_from(nodes))


@st.composite
def wild(draw: Callable[[Any], Any]) -> tuple[list[str], Edges, Routes, str]:
    """Graphs that are wrong in many ways at once."""
    nodes = draw(st.lists(st.sampled_from(IDS), unique=True))
    return nodes, draw(wild_edges), draw(wild_routes), draw(st.sampled_from([*IDS, "x", END]))


def build(parts: tuple[list[str], Edges, Routes, str]) -> Graph[dict[str, Any]]:
    nodes, edges, routes, entry = parts
    graph = Graph(dict[str, Any])
    for node in nodes:
        graph.add_node(node, unused)
    for source, targets in edges.items():
        for target in targets:
            graph.add_edge(source, target)
    for source, answers in routes.items():
        graph.add_conditional_edge(source, unused, answers)
    return graph.set_entry(entry)


def compiled_or_none(parts: tuple[list[str], Edges, Routes, str]) -> CompiledGraph[dict[str, Any]] | None:
    try:
        return build(parts).compile()
    except GraphError as error:
        found = error.problems
    assert found
    assert len(found) == len(set(found))
    return None


def distances(graph: CompiledGraph[Any]) -> dict[str, int]:
    """How many edges lie between each node and END at least."""
    found = {END: 0}
    for _ in graph.node_ids:
        for node in graph.node_ids:
            ways = [found[target] + 1 for target in graph.successors(node) if target in found]
            if ways:
                found[node] = min(ways)
    return found


def walk_at_random(graph: CompiledGraph[Any], choices: list[int]) -> str:
    """Where a walk ends that goes at random as long as there are choices, and then the shortest way."""
    left, far = list(choices), distances(graph)
    walk = graph._definition.walk(graph._definition.entry)
    target = graph._definition.entry
    try:
        unit = next(walk)
        for _ in range(2 * (len(choices) + 1) * len(graph.node_ids)):
            assert isinstance(unit, Unit)
            assert target == unit.id
            if unit.router is None:
                assert unit.next_node is not None
                target = unit.next_node
            else:
                assert unit.next_node is None
                answers = [*graph.node_ids, END] if unit.router.targets is None else list(unit.router.targets.values())
                target = answers[left.pop() % len(answers)] if left else min(answers, key=far.__getitem__)
            assert target in graph.successors(unit.id)
            unit = walk.send(target)
    except StopIteration:
        return target
    raise AssertionError("the walk does not end")


@given(parts=likely() | wild(), choices=st.lists(st.integers(min_value=0, max_value=5), max_size=20))
def test_a_graph_is_refused_or_its_walk_ends_only_in_end(
    parts: tuple[list[str], Edges, Routes, str], choices: list[int]
) -> None:
    graph = compiled_or_none(parts)
    if graph is not None:
        assert END == walk_at_random(graph, choices)


def reaches_end(graph: Topology, start: str) -> bool:
    """Whether END can be reached."""
    return END in reached_from(graph, start)


def reached_from(graph: Topology, start: str) -> set[str]:
    """What can be reached, by plain search over the public answers."""
    seen, waiting = set[str](), [start]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += graph.successors(node)
    return seen


@given(likely())
def test_the_named_dead_ends_are_why_end_is_not_reached(parts: tuple[list[str], Edges, Routes, str]) -> None:
    nodes, edges, routes, entry = parts
    graph = Topology(
        nodes=tuple(nodes),
        edges={source: tuple(targets) for source, targets in edges.items()},
        routes={s: (None if t is None else {answer: answer for answer in t},) for s, t in routes.items()},
        entry=entry,
    )
    codes = {problem.code for problem in graph.problems()}
    stuck = [node for node in reached_from(graph, entry) - {END} if not reaches_end(graph, node)]
    assert bool(stuck) <= bool(codes & {"no_path_to_end", "dead_end", "endless_cycle"})
    assert (not reaches_end(graph, entry)) == ("no_path_to_end" in codes)
    cyclic = any(node in reached_from(graph, target) for node in nodes for target in graph.successors(node))
    assert cyclic == graph.has_cycle
    unreachable = {warning.where for warning in graph.warnings() if warning.code == "unreachable_node"}
    assert set(nodes) - reached_from(graph, entry) == unreachable
    for node in nodes:
        assert set(graph.predecessors(node)) == {other for other in nodes if node in graph.successors(other)}


@given(likely(), likely())
def test_fingerprints_are_equal_exactly_if_nothing_differs(
    one: tuple[list[str], Edges, Routes, str], other: tuple[list[str], Edges, Routes, str]
) -> None:
    first, second = compiled_or_none(one), compiled_or_none(other)
    if first is not None and second is not None:
        recorded = json.loads(json.dumps(first._definition.shape))
        assert (first.fingerprint == second.fingerprint) == (second._definition.differences(recorded) == ())
        if first._definition.shape == second._definition.shape:
            assert first.fingerprint == second.fingerprint


@given(likely(), st.randoms(use_true_random=False))
def test_the_order_of_declaration_changes_no_fingerprint(
    parts: tuple[list[str], Edges, Routes, str], chance: random.Random
) -> None:
    nodes, edges, routes, entry = parts
    first = compiled_or_none(parts)
    shuffled = (chance.sample(nodes, len(nodes)), dict(reversed(edges.items())), dict(reversed(routes.items())), entry)
    second = compiled_or_none(shuffled)
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert first.fingerprint == second.fingerprint
        assert () == first._definition.differences(second._definition.shape)


@given(likely(), st.dictionaries(st.sampled_from(IDS), st.sampled_from(["done", "running", "failed", "next"])))
def test_every_graph_can_be_drawn_and_always_the_same(
    parts: tuple[list[str], Edges, Routes, str], status: dict[str, str]
) -> None:
    first, second = compiled_or_none(parts), compiled_or_none(parts)
    if first is not None and second is not None:
        assert first.to_mermaid(status) == second.to_mermaid(status)
        assert first.to_dot(status) == second.to_dot(status)


@given(st.text(min_size=1))
def test_any_text_is_a_node_id_or_refused_as_a_graph_error(text: str) -> None:
    graph = Graph(dict[str, Any])
    try:
        graph.add_node(text, unused)
    except GraphError as error:
        codes = {problem.code for problem in error.problems}
    else:
        codes = set()
        compiled = graph.add_edge(text, END).set_entry(text).compile()
        assert (text,) == compiled.node_ids
        assert 6 == compiled.to_mermaid().count("\n")
        assert 8 == compiled.to_dot().count("\n")
    assert codes <= {"bad_id", "reserved_id"}
