"""`Retention(keep_last=)` while runs are under way: an endless loop does not grow, and goes on after a crash as before."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from milepost import END, Graph, step, workflow
from milepost.model.upkeep import Retention

KEPT = 2


class Lap(TypedDict):
    number: int
    seen: Annotated[list[str], operator.add]
    text: str


def circuit(verbs, laps: int, look: Any) -> Any:
    """Laps over a node, two branches that meet, a map and a graph inside the graph; `look` is called once a lap."""
    inner = Graph(Lap, partial=True).add_node("x", verbs.node(lambda state: {"seen": ["x"]})).add_edge("x", END)
    graph = Graph(Lap, partial=True)

    def begin(state: Lap) -> Any:
        look(state["number"])
        # Large enough to be kept as what changed.
        return {"number": state["number"] + 1, "text": state["text"][:-1] + str(state["number"] % 10)}

    graph.add_node("begin", verbs.node(begin))
    graph.add_node("a", verbs.node(lambda state: {"seen": ["a"]})).add_node("b", verbs.node(lambda state: {}))
    graph.add_node("join", verbs.node(lambda state: {}))
    graph.add_map("map", lambda state: [1, 2], verbs.node(lambda item: item), merge=lambda state, results: {})
    graph.add_subgraph("sub", inner.set_entry("x").compile("inner"))
    for source, target in (
        ("begin", "a"),
        ("begin", "b"),
        ("a", "join"),
        ("b", "join"),
        ("join", "map"),
        ("map", "sub"),
    ):
        graph.add_edge(source, target)
    graph.add_conditional_edge("sub", lambda state: "begin" if state["number"] < laps else END, ["begin", END])
    return graph.set_entry("begin").compile("circuit")


def test_an_endless_loop_does_not_grow_and_goes_on_after_a_crash(verbs, medium, clock):
    store = medium.open(clock=clock, retention=Retention(keep_last=KEPT))
    sizes: list[int] = []

    def look(lap: int) -> None:
        sizes.append(len(store.history("r")))
        if lap == 9 and len(sizes) == 10:
            raise verbs.Killed

    graph, given = circuit(verbs, 14, look), Lap(number=0, seen=[], text="." * 5000)
    verbs.crash(graph, store, "r", given, max_iterations=None)
    clock.advance(60)
    told = verbs.resume(graph, store, "r", max_iterations=None)
    assert (14, ["a", "x"] * 14) == (told["number"], told["seen"])
    per_lap = sizes[1]
    assert max(sizes) <= per_lap * 2 * KEPT
    assert [13, 14] == [info.visit for info in store.history("r") if info.node_id == "begin"]
    assert store.verify("r").ok


def test_a_workflow_is_replayed_as_before_while_its_runs_are_thinned(verbs, medium, clock, log):
    store = medium.open(clock=clock, retention=Retention(keep_last=1))

    def work(name: str) -> str:
        log.append(name)
        if log.count("stop") == 1 and name == "stop":
            raise verbs.Killed
        return name

    @workflow("laps")
    def laps():
        done = list[str]()
        while len(done) < 6:
            done += [(yield step(f"work-{len(done)}").python(verbs.node(work), args=(str(len(done)),)))]
        items = yield step("items").map(verbs.node(work), ["x", "y"])
        return [*done, (yield step("stop").python(verbs.node(work), args=("stop",))), *items]

    verbs.crash(laps, store, "r", {})
    clock.advance(60)
    assert [*"012345", "stop", "x", "y"] == verbs.resume(laps, store, "r")
    assert {"stop": 2} == {name: log.count(name) for name in {*log} if log.count(name) > 1}
    assert store.verify("r").ok
    for _ in range(3):
        assert [*"012345", "stop", "x", "y"] == verbs.resume_from(laps, store, "r", "work-5", rerun=True)
    assert 4 == log.count("5")
    assert store.verify("r").ok
