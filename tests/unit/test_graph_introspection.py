"""What a compiled graph tells of itself, in values and in drawings."""

from __future__ import annotations

import json
import logging
import re
import tracemalloc
from typing import Any

import pytest

from counting import calls_of
from milepost.errors import OptionError
from milepost.executor.flow import END
from milepost.graph.builder import CompiledGraph, Graph
from milepost.graph.drawing import recorded_picture, to_mermaid


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
    assert "price" == compiled._definition.entry
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
    recorded = json.loads(json.dumps(compiled._definition.shape))
    assert () == compiled._definition.differences(recorded)
    assert ("the entry is now 'charge' instead of 'price'",) == loop().set_entry(
        "charge"
    ).compile()._definition.differences(recorded)


def test_the_codec_carries_the_state(compiled: CompiledGraph[dict[str, Any]]) -> None:
    assert {"total": 1} == compiled._definition.codec.decode(compiled._definition.codec.encode({"total": 1}))


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


def test_the_work_of_a_drawing_grows_with_the_edges_and_not_with_their_square() -> None:
    def drawn(length: int) -> CompiledGraph[dict[str, Any]]:
        graph = Graph(dict[str, Any]).set_entry("n0")
        for number in range(length):
            graph.add_node(f"n{number}", unused).add_conditional_edge(
                f"n{number}", unused, [f"n{n}" for n in range(length)] + [END]
            )
        return graph.compile()

    assert drawn(50).to_mermaid() == drawn(50).to_mermaid()
    assert calls_of(drawn(50).to_mermaid) < 35 * calls_of(drawn(10).to_mermaid)


def chain(length: int) -> Graph[dict[str, Any]]:
    graph = Graph(dict[str, Any]).set_entry("n0")
    for number in range(length):
        graph.add_node(f"n{number}", unused).add_edge(f"n{number}", f"n{number + 1}" if number + 1 < length else END)
    return graph


def test_the_work_of_compile_is_linear_in_nodes_and_edges() -> None:
    chain(100).compile()  # what is made at the first call counts for neither
    assert calls_of(chain(1000).compile) < 15 * calls_of(chain(100).compile)


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


# -- forks, maps, graphs inside, waits -------------------------------------------------------------------------


def trip() -> Graph[dict[str, Any]]:
    """A graph with one of each kind of node."""
    inner = (
        Graph(dict[str, Any])
        .add_node("find", unused)
        .add_node("book", unused)
        .add_edge("find", "book")
        .add_edge("book", END)
    )
    cars = inner.set_entry("find").compile("cars")
    graph = Graph(dict[str, Any]).add_node("plan", unused).add_subgraph("cars", cars).add_node("hotels", unused)
    graph.add_map("visas", lambda state: [], unused, merge=lambda state, found: state)
    graph.add_map("days", lambda state: [], cars, merge=lambda state, found: state)
    graph.add_wait("ask", "approval", apply=lambda state, reply: state).add_timer("rest", duration=60)
    graph.add_node("meet", unused, merge=lambda state, ends: state)
    graph.add_edge("plan", "cars").add_edge("plan", "hotels").add_edge("cars", "meet").set_entry("plan")
    graph.add_conditional_edge("hotels", unused, {"full": "hotels", "booked": "meet"}).add_edge("meet", "visas")
    return graph.add_edge("visas", "days").add_edge("days", "ask").add_edge("ask", "rest").add_edge("rest", END)


def test_the_mermaid_drawing_of_forks_maps_graphs_and_waits() -> None:
    assert """\
flowchart TD
    start([start])
    n0["plan"]
    subgraph n1["cars"]
        n1_start(( ))
        n1_n0["cars/find"]
        n1_n1["cars/book"]
        n1_finish(( ))
        n1_start --> n1_n0
        n1_n0 --> n1_n1
        n1_n1 --> n1_finish
    end
    n2["hotels"]
    n3[["visas<br/>for each item"]]
    subgraph n4["days<br/>for each item"]
        n4_start(( ))
        n4_n0["days/#42;/find"]
        n4_n1["days/#42;/book"]
        n4_finish(( ))
        n4_start --> n4_n0
        n4_n0 --> n4_n1
        n4_n1 --> n4_finish
    end
    n5[/"ask<br/>waits for approval"/]
    n6>"rest<br/>timer"]
    n7["meet"]
    finish([end])
    start --> n0
    n0 ==> n1_start
    n0 ==> n2
    n1_finish ==> n7
    n2 -.->|"full"| n2
    n2 -.->|"booked"| n7
    n3 --> n4_start
    n4_finish --> n5
    n5 --> n6
    n6 --> finish
    n7 --> n3
""" == trip().compile("trip").to_mermaid()


def test_the_dot_drawing_of_forks_maps_graphs_and_waits() -> None:
    lines = trip().compile("trip").to_dot().splitlines()
    at = lines.index("    subgraph cluster_n1 {")
    assert [
        '        label="cars";',
        "        style=rounded;",
        '        n1_start [label="", shape=circle, width=0.15];',
        '        n1_n0 [label="cars/find"];',
        '        n1_n1 [label="cars/book"];',
        '        n1_finish [label="", shape=doublecircle, width=0.15];',
        "        n1_start -> n1_n0;",
        "        n1_n0 -> n1_n1;",
        "        n1_n1 -> n1_finish;",
        "    }",
    ] == lines[at + 1 : at + 11]
    for line in (
        '    n3 [label="visas\\nfor each item", peripheries=2];',
        '        label="days\\nfor each item";',
        '    n5 [label="ask\\nwaits for approval", shape=parallelogram];',
        '    n6 [label="rest\\ntimer", shape=octagon];',
        "    n0 -> n1_start [style=bold];",
        "    n1_finish -> n7 [style=bold];",
        '    n2 -> n7 [style="dashed,bold", label="booked"];',
        "    n3 -> n4_start;",
    ):
        assert line in lines


def test_to_dict_tells_the_forks_with_their_joins() -> None:
    outer = (
        Graph(dict[str, Any]).add_subgraph("inner", trip().compile("trip")).add_edge("inner", END).set_entry("inner")
    )
    told = json.loads(json.dumps(trip().compile("trip").to_dict()))
    inside = {"cars": ["cars"], "hotels": ["hotels"]}
    fork = {"node": "plan", "branches": ["cars", "hotels"], "join": "meet", "inside": inside}
    assert [fork] == told["forks"]
    assert {"kind": "wait", "signal": "approval"} == told["kinds"]["ask"]
    assert [fork] == outer.compile("outer").to_dict()["kinds"]["inner"]["shape"]["forks"]
    assert "forks" not in outer.compile("outer")._definition.shape["kinds"]["inner"]["shape"]


def test_status_and_notes_go_by_whole_ids() -> None:
    compiled = trip().compile("trip")
    status = {
        "cars": "running",
        "cars/find": "done",
        "cars/gone": "done",
        "days": "failed",
        "days/0": "done",
        "days/0/find": "done",
        "days/1/find": "failed",
        "days/2/book": "next",
        "ask": "waiting",
        "ask/x/y": "done",
        "visas/0": "done",
    }
    drawing = compiled.to_mermaid(status, {"visas": '3 of 10, 1 "bad"', "days/*/find": "slow", "gone": "x"})
    classes = re.findall(r"    class (\S+) (\w+)\n", drawing)
    assert [
        ("n1", "running"),
        ("n1_n0", "done"),
        ("n4,n4_n0", "failed"),
        ("n4_n1", "next"),
        ("n5", "waiting"),
    ] == classes
    assert '    n3[["visas<br/>for each item<br/>3 of 10, 1 #34;bad#34;"]]\n' in drawing
    assert '        n4_n0["days/#42;/find<br/>slow"]\n' in drawing
    dot = compiled.to_dot(status, {"visas": "3 of\n10"})
    assert '        style=rounded; color="#1f6fb8"; penwidth=2;\n' in dot
    assert '    n3 [label="visas\\nfor each item\\n3 of 10", peripheries=2];\n' in dot
    assert '        n4_n0 [label="days/*/find", style="rounded,filled", fillcolor="#fbd9d6", color="#b8291f"];\n' in dot


def test_odd_names_cannot_break_a_frame_or_a_signal() -> None:
    odd = 'end"]\nx'
    inner = Graph(dict).add_node("a", unused).set_entry("a").add_conditional_edge("a", unused).compile()
    graph = Graph(dict).add_subgraph('s"]', inner).add_wait("w", odd, apply=lambda state, reply: state).set_entry('s"]')
    compiled = graph.add_edge('s"]', "w").add_edge("w", END).compile()
    assert '    subgraph n0["s#34;#93;"]\n' in compiled.to_mermaid()
    assert '        n0_anywhere{{"any node"}}\n' in compiled.to_mermaid()
    assert '    n1[/"w<br/>waits for end#34;#93; x"/]\n' in compiled.to_mermaid()
    assert '        label="s\\"]";\n' in compiled.to_dot()


def test_a_recorded_shape_is_drawn_as_the_graph_is_but_for_its_routers_answers() -> None:
    compiled = trip().compile("trip")
    recorded = recorded_picture(json.loads(json.dumps(compiled._definition.shape)))
    assert re.sub(r'\|"\w+"\|', "", compiled.to_mermaid()) == to_mermaid(recorded)
