"""What `compile` finds in a whole graph: every problem at once, and what it only warns of."""

from __future__ import annotations

import io
import logging
from dataclasses import dataclass
from typing import Any

import pytest

from milepost.errors import GraphError
from milepost.executor.flow import END, START
from milepost.graph.builder import Graph


@dataclass
class State:
    count: int = 0


def keep(state: State) -> State:
    return state


def choose(state: State) -> str:
    return END


def nodes(ids: str, **options: Any) -> Graph[State]:
    """A graph with a node for each letter, entry at the first."""
    graph = Graph(State, **options).set_entry(ids[0])
    for node in ids:
        graph.add_node(node, keep)
    return graph


def found(graph: Graph[Any]) -> list[tuple[str, str]]:
    with pytest.raises(GraphError) as caught:
        graph.compile()
    for problem in caught.value.problems:
        assert problem.text in str(caught.value)
    return [(problem.code, problem.where) for problem in caught.value.problems]


def test_an_empty_graph_has_no_entry() -> None:
    assert [("entry_not_set", "")] == found(Graph(State))


def test_an_entry_that_is_no_node_is_a_problem() -> None:
    assert [("entry_unknown", "x")] == found(nodes("a").add_edge("a", END).set_entry("x"))
    assert [("entry_unknown", END)] == found(nodes("a").add_edge("a", END).add_edge(START, END))


def test_an_edge_from_what_is_no_node_is_a_problem() -> None:
    assert [("edge_source_unknown", "x")] == found(nodes("a").add_edge("a", END).add_edge("x", "a"))
    assert [("edge_source_unknown", END)] == found(nodes("a").add_edge("a", END).add_edge(END, "a"))
    assert [("edge_source_unknown", "x")] == found(
        nodes("a").add_edge("a", END).add_conditional_edge("x", choose, ["a"])
    )
    assert [("edge_source_unknown", START)] == found(
        nodes("a").add_edge("a", END).add_conditional_edge(START, choose, ["a"])
    )


def test_an_edge_to_what_is_no_node_is_a_problem() -> None:
    assert [("edge_target_unknown", "a")] == found(nodes("a").add_edge("a", "x"))
    assert [("edge_target_unknown", "a")] == found(nodes("a").add_edge("a", START))


def test_an_edge_to_a_misspelt_end_is_told_of_end() -> None:
    with pytest.raises(GraphError, match="did you mean END"):
        nodes("a").add_edge("a", "end").compile()


def test_a_declared_target_that_is_no_node_is_a_problem() -> None:
    assert [("router_target_unknown", "a")] == found(nodes("a").add_conditional_edge("a", choose, ["x", END]))
    assert [("router_target_unknown", "a")] == found(
        nodes("a").add_conditional_edge("a", choose, {True: "x", False: END})
    )


def test_a_graph_without_a_path_to_end_is_a_problem() -> None:
    assert [("no_path_to_end", "a")] == found(nodes("a"))
    assert [("no_path_to_end", "a"), ("dead_end", "b")] == found(nodes("ab").add_edge("a", "b"))


def test_a_reachable_node_that_cannot_reach_end_is_a_problem() -> None:
    assert [("dead_end", "b")] == found(nodes("ab").add_conditional_edge("a", choose, ["b", END]))
    graph = nodes("abc").add_conditional_edge("a", choose, ["b", END]).add_edge("b", "c")
    assert [("dead_end", "c")] == found(graph)


def test_a_dead_end_that_nothing_reaches_is_only_warned_of() -> None:
    compiled = nodes("ab").add_edge("a", END).compile()
    assert ["unreachable_node"] == [warning.code for warning in compiled.warnings]


def test_a_cycle_that_no_conditional_edge_leaves_is_a_problem() -> None:
    cycle = nodes("abc").add_conditional_edge("a", choose, ["b", END]).add_edge("b", "c").add_edge("c", "b")
    assert [("endless_cycle", "b")] == found(cycle)
    self_loop = nodes("ab").add_conditional_edge("a", choose, ["b", END]).add_edge("b", "b")
    assert [("endless_cycle", "b")] == found(self_loop)
    inner = nodes("abc").add_conditional_edge("a", choose, ["b", END])
    inner.add_conditional_edge("b", choose, ["b", "c"]).add_edge("c", "b")
    assert [("endless_cycle", "b")] == found(inner)


def test_a_cycle_that_nothing_reaches_is_a_problem_all_the_same() -> None:
    assert [("endless_cycle", "b")] == found(nodes("ab").add_edge("a", END).add_edge("b", "b"))


def test_a_cycle_that_a_router_can_leave_is_none() -> None:
    loop = nodes("ab").add_edge("a", "b").add_conditional_edge("b", choose, ["a", END])
    assert loop.compile().has_cycle
    self_loop = nodes("a").add_conditional_edge("a", choose, ["a", END])
    assert self_loop.compile().has_cycle
    undeclared = nodes("ab").add_edge("a", "b").add_conditional_edge("b", choose)
    assert undeclared.compile().has_cycle


def test_simple_and_conditional_edges_of_one_node_are_a_problem() -> None:
    graph = nodes("ab").add_edge("a", "b").add_conditional_edge("a", choose, [END]).add_edge("b", END)
    assert [("mixed_edges", "a")] == found(graph)


def test_the_same_edge_twice_is_a_problem() -> None:
    assert [("duplicate_edge", "a")] == found(nodes("a").add_edge("a", END).add_edge("a", END))


def test_two_conditional_edges_of_one_node_are_a_problem() -> None:
    graph = nodes("a").add_conditional_edge("a", choose, [END]).add_conditional_edge("a", choose, ["a", END])
    assert [("several_routers", "a")] == found(graph)


def test_several_simple_edges_of_one_node_are_a_fork_without_a_join() -> None:
    graph = nodes("abc").add_edge("a", "b").add_edge("a", "c").add_edge("b", END).add_edge("c", END)
    assert [("fork_without_join", "a")] == found(graph)
    with pytest.raises(GraphError, match="has no join"):
        graph.compile()


def test_a_reducer_for_a_field_that_the_state_lacks_is_a_problem() -> None:
    graph = nodes("a", partial=True, reducers={"cuont": max}).add_edge("a", END)
    assert [("reducer_field_unknown", "cuont")] == found(graph)


def test_reducers_for_any_field_of_a_dict_are_fine() -> None:
    graph = Graph(dict[str, Any], partial=True, reducers={"anything": max})
    assert graph.add_node("a", lambda state: state).add_edge("a", END).set_entry("a").compile().node_ids == ("a",)


def test_all_problems_are_reported_at_once() -> None:
    graph = nodes("abcd", reducers={"none": max}).set_entry("a").add_edge("a", "x").add_edge("y", "b")
    graph.add_edge("b", "c").add_edge("b", "d").add_conditional_edge("c", choose, ["z"]).add_edge("d", "d")
    assert [
        ("edge_source_unknown", "y"),
        ("edge_target_unknown", "a"),
        ("router_target_unknown", "c"),
        ("fork_without_join", "b"),
        ("endless_cycle", "d"),
        ("reducer_field_unknown", "none"),
    ] == found(graph)


def test_the_builder_can_be_mended_after_a_refused_compile() -> None:
    graph = nodes("a")
    assert [("no_path_to_end", "a")] == found(graph)
    assert ("a",) == graph.add_edge("a", END).compile().node_ids


def test_unreachable_nodes_are_warned_of() -> None:
    compiled = nodes("abc").add_edge("a", END).add_edge("b", "c").add_edge("c", END).compile()
    assert [("unreachable_node", "b"), ("unreachable_node", "c")] == [(w.code, w.where) for w in compiled.warnings]


def test_a_router_without_declared_targets_is_warned_of_and_reaches_everything() -> None:
    compiled = nodes("abc").add_conditional_edge("a", choose).add_edge("b", "c").add_edge("c", END).compile()
    assert [("undeclared_targets", "a")] == [(w.code, w.where) for w in compiled.warnings]


def test_a_field_that_cannot_be_recorded_is_warned_of() -> None:
    @dataclass
    class Open:
        stream: io.StringIO | None = None

    graph = Graph(Open).add_node("a", lambda state: state).add_edge("a", END).set_entry("a")
    assert [("field_not_recordable", "state.stream")] == [(w.code, w.where) for w in graph.compile().warnings]


def test_each_warning_is_one_log_record(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="milepost"):
        compiled = nodes("ab").add_conditional_edge("a", choose, [END]).add_edge("b", END).compile("orders")
    (record,) = caplog.records
    (warning,) = compiled.warnings
    assert ("milepost", logging.WARNING) == (record.name, record.levelno)
    assert f"graph 'orders': {warning.text}" == record.getMessage()
    assert ("orders", "b", "unreachable_node") == (record.flow, record.node_id, record.code)  # type: ignore[attr-defined]


def test_a_graph_without_doubts_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert () == nodes("a").add_edge("a", END).compile().warnings
    assert [] == caplog.records
