"""What a compiled graph tells of itself, in values and in drawings."""

from __future__ import annotations

import json
import logging
import re
import time
import tracemalloc
from typing import Any

import pytest

from milepost.errors import OptionError
from milepost.flow import END
from milepost.graph import CompiledGraph, Graph


def unused(state: Any) -> Any:
    return state


def loop() -> Graph[dict[str, Any]]:
    graph = Graph(dict[str, Any]).add_node("price", unused).add_node("charge", unused).add_node("note", unused)
    graph.add_edge("price", "charge").add_edge("note", END).set_entry("price")
    return graph.add_conditional_edge("charge", unused, {"again": "price", "paid": "note", "void": END})


@pytest.fixture
def compiled() -> CompiledGraph[dict[str, Any]]:
    return loop().compile("orders")


def test_a_compiled_graph_tells_what_it_is_made_of(compiled: CompiledGraph[dict[str, Any]]) -> None:
    assert "price" == compiled.entry_point
    assert "price" == compiled.entry
    assert ("price", "charge", "note") == compiled.node_ids
    assert [True, False, False] == [compiled.has_node(node) for node in ("price", END, "none")]
    assert [False, True, False] == [compiled.is_conditional(node) for node in ("price", "charge", "none")]
    assert compiled.has_cycle
    assert () == compiled.forks
    assert () == compiled.warnings
    assert "<CompiledGraph 'orders': 3 nodes, entry 'price'>" == repr(compiled)


def test_successors_and_predecessors(compiled: CompiledGraph[dict[str, Any]]) -> None:
    assert ("charge",) == compiled.successors("price")
    assert ("price", "note", END) == compiled.successors("charge")
    assert ("charge",) == compiled.predecessors("price")
    assert ("price",) == compiled.predecessors("charge")
    for node in (END, "none"):
        assert () == compiled.successors(node)
        assert () == compiled.predecessors(node)


def test_a_router_without_declared_targets_leads_to_everything() -> None:
    compiled = Graph(dict).add_node("a", unused).add_node("b", unused).add_edge("b", END).set_entry("a")
    graph = compiled.add_conditional_edge("a", unused).compile()
    assert ("a", "b", END) == graph.successors("a")
    assert ("a",) == graph.predecessors("a")
    assert ("a",) == graph.predecessors("b")
    assert graph.has_cycle


def test_a_straight_graph_has_no_cycle() -> None:
    assert not Graph(dict).add_node("a", unused).add_edge("a", END).set_entry("a").compile().has_cycle


def test_to_dict_is_json(compiled: CompiledGraph[dict[str, Any]]) -> None:
    assert {
        "name": "orders",
        "fingerprint": compiled.fingerprint,
        "nodes": ["price", "charge", "note"],
        "edges": [["price", "charge"], ["note", END]],
        "conditional": {"charge": [END, "note", "price"]},
        "entry": "price",
    } == json.loads(json.dumps(compiled.to_dict()))


def test_a_compiled_graph_compares_itself_with_a_recorded_shape(compiled: CompiledGraph[dict[str, Any]]) -> None:
    recorded = json.loads(json.dumps(compiled.shape))
    assert () == compiled.differences(recorded)
    assert ("the entry is now 'charge' instead of 'price'",) == loop().set_entry("charge").compile().differences(
        recorded
    )


def test_the_codec_carries_the_state(compiled: CompiledGraph[dict[str, Any]]) -> None:
    assert {"total": 1} == compiled.codec.decode(compiled.codec.encode({"total": 1}))


def test_functions_and_names_do_not_count_for_the_fingerprint(compiled: CompiledGraph[dict[str, Any]]) -> None:
    assert re.fullmatch("[0-9a-f]{64}", compiled.fingerprint)
    assert compiled.fingerprint == loop().compile("other").fingerprint
    assert compiled.fingerprint != loop().set_entry("charge").compile("orders").fingerprint


def test_the_mermaid_drawing(compiled: CompiledGraph[dict[str, Any]]) -> None:
    assert """\
flowchart TD
    start([start])
    n0["price"]
    n1["charge"]
    n2["note"]
    finish([end])
    start --> n0
    n0 --> n1
    n1 -.->|"again"| n0
    n1 -.->|"paid"| n2
    n1 -.->|"void"| finish
    n2 --> finish
""" == compiled.to_mermaid()


def test_the_dot_drawing(compiled: CompiledGraph[dict[str, Any]]) -> None:
    assert """\
digraph "orders" {
    node [shape=box, style=rounded];
    start [label="start", shape=circle];
    n0 [label="price"];
    n1 [label="charge"];
    n2 [label="note"];
    finish [label="end", shape=doublecircle];
    start -> n0;
    n0 -> n1;
    n1 -> n0 [style=dashed, label="again"];
    n1 -> n2 [style=dashed, label="paid"];
    n1 -> finish [style=dashed, label="void"];
    n2 -> finish;
}
""" == compiled.to_dot()


def test_status_colours_nodes_and_leaves_out_those_that_are_gone(compiled: CompiledGraph[dict[str, Any]]) -> None:
    status = {"price": "done", "note": "done", "charge": "failed", "gone": "next"}
    drawing = compiled.to_mermaid(status)
    assert "    class n0,n2 done\n" in drawing
    assert "    class n1 failed\n" in drawing
    assert "classDef next" not in drawing
    assert drawing.startswith(compiled.to_mermaid())
    assert (
        '    n1 [label="charge", style="rounded,filled", fillcolor="#fbd9d6", color="#b8291f"];\n'
        in compiled.to_dot(status)
    )


@pytest.mark.parametrize("draw", [CompiledGraph.to_mermaid, CompiledGraph.to_dot])
def test_an_unknown_status_is_refused(draw: Any, compiled: CompiledGraph[dict[str, Any]]) -> None:
    with pytest.raises(OptionError, match="one of done, running, failed, next, waiting"):
        draw(compiled, {"price": "bored"})


def test_a_router_to_anywhere_is_drawn() -> None:
    graph = Graph(dict).add_node("a", unused).add_conditional_edge("a", unused).set_entry("a").compile()
    assert '    anywhere{{"any node"}}\n' in graph.to_mermaid()
    assert "    n0 -.-> anywhere\n" in graph.to_mermaid()
    assert "    n0 -> anywhere [style=dashed];\n" in graph.to_dot()


def test_odd_names_cannot_break_a_drawing() -> None:
    odd = 'a"]\\;%%[é]<b>`#|'
    graph = Graph(dict).add_node(odd, unused).set_entry(odd)
    compiled = graph.add_conditional_edge(odd, unused, {'x"|\n y': odd, 7: END}).compile()
    mermaid, dot = compiled.to_mermaid(), compiled.to_dot()
    assert '    n0["a#34;#93;#92;#59;#37;#37;#91;é#93;#60;b#62;#96;#35;#124;"]\n' in mermaid
    assert '    n0 -.->|"x#34;#124; y"| n0\n' in mermaid
    assert '    n0 -.->|"7"| finish\n' in mermaid
    assert '    n0 [label="a\\"]\\\\;%%[é]<b>`#|"];\n' in dot


def test_long_answers_are_cut_in_a_drawing() -> None:
    graph = Graph(dict).add_node("a", unused).set_entry("a")
    compiled = graph.add_conditional_edge("a", unused, {"x" * 60: "a", "y": END}).compile()
    assert f'|"{"x" * 39}…"|' in compiled.to_mermaid()


def test_to_mermaid_of_50_nodes_takes_less_than_a_second() -> None:
    graph = Graph(dict).set_entry("n0")
    for number in range(50):
        graph.add_node(f"n{number}", unused).add_conditional_edge(
            f"n{number}", unused, [f"n{n}" for n in range(50)] + [END]
        )
    compiled = graph.compile()
    begin = time.perf_counter()
    drawing = compiled.to_mermaid()
    assert time.perf_counter() - begin < 1.0
    assert drawing == graph.compile().to_mermaid()


def chain(length: int) -> Graph[dict[str, Any]]:
    graph = Graph(dict[str, Any]).set_entry("n0")
    for number in range(length):
        graph.add_node(f"n{number}", unused).add_edge(f"n{number}", f"n{number + 1}" if number + 1 < length else END)
    return graph


@pytest.mark.parametrize(("seconds", "length"), [(0.001, 10), (0.005, 100), (0.050, 1000)])
def test_compile_is_fast(seconds: float, length: int) -> None:
    graph = chain(length)

    def compiled_in() -> float:
        begin = time.perf_counter()
        graph.compile()
        return time.perf_counter() - begin

    assert min(compiled_in() for _ in range(10)) < seconds


def test_memory_is_linear_in_nodes_and_edges() -> None:
    def bytes_of(length: int) -> int:
        graph = chain(length)
        for number in range(length):
            graph.add_node(f"r{number}", unused).add_conditional_edge(f"r{number}", unused)
        logging.disable(logging.WARNING)
        tracemalloc.start()
        try:
            compiled = graph.compile()
            return tracemalloc.get_traced_memory()[1] if compiled else 0
        finally:
            tracemalloc.stop()
            logging.disable(logging.NOTSET)

    assert bytes_of(1000) < 6 * bytes_of(250)
