"""Runs of each kind that the console shows, in one store, with times and ids that never change."""

from __future__ import annotations

import contextlib
from typing import Any

from milepost import Engine, Graph, MemoryStore, step, workflow
from milepost.errors import MilepostError
from milepost.testing import FakeClock


def add(state: dict) -> dict:
    return {**state, "n": state.get("n", 0) + 1}


def price(state: dict) -> dict:
    """Look the price up."""
    if not state.get("ok"):
        raise ValueError("no price <b>for</b> it")
    return {**state, "price": 12}


def line(name: str, *nodes: Any) -> Any:
    graph = Graph(dict)
    names = [node[0] for node in nodes]
    for node_id, fn, *options in nodes:
        graph.add_node(node_id, fn, **(options[0] if options else {}))
    graph.set_entry(names[0])
    for source, target in zip(names, [*names[1:], "__end__"], strict=True):
        graph.add_edge(source, target)
    return graph.compile(name)


adding = line("adding", ("add", add), ("more", add))
orders = line("orders", ("add", add), ("price", price))


def _merged(state: dict, results: list) -> dict:
    return {**state, "results": results}


def _halved(item: int) -> float:
    return item / (item % 3)


def mapped() -> Any:
    """A graph with a map, of which an item fails."""
    graph = Graph(dict).add_map("each", lambda state: state["items"], _halved, merge=_merged, max_parallel=1)
    return graph.set_entry("each").add_edge("each", "__end__").compile("mapped")


def forked() -> Any:
    """A graph with two branches and a join, and a graph inside a node."""
    graph = Graph(dict).add_node("begin", add, max_parallel=1).add_node("left", add).add_node("right", price)
    graph.add_node("join", add, merge=lambda before, states: {**before, "n": len(states)})
    graph.add_subgraph("inner", adding).set_entry("begin")
    graph.add_edge("begin", "left").add_edge("begin", "right").add_edge("left", "join").add_edge("right", "join")
    return graph.add_edge("join", "inner").add_edge("inner", "__end__").compile("forked")


@workflow("asking")
def asking(amount: int):
    reply = yield from step("ask").wait_for("approval", payload=bool, prompt=f"pay {amount}?")
    return reply.payload


@workflow("paying")
def paying(n: int):
    first = yield from step("reserve").with_rollback(lambda n: None).python(lambda: n)
    yield from step("pay").python(lambda: 1 / 0)
    return first


FLOWS = (adding, orders, asking, paying)


def make_runs(engine: Engine) -> None:
    """Make the runs: `done`, `failed`, `wait`, `rolled`, `fork`, `ready`, and `a/b ?#` with an odd id."""
    for flow, state, run_id in (
        (adding, {"card": "4111"}, "done"),
        (orders, {"card": "4111"}, "failed"),
        (adding, {}, "a/b ?#"),
    ):
        with contextlib.suppress(MilepostError):
            engine.run(flow, state, run_id=run_id)
    for made, value, run_id in ((asking, 12, "wait"), (paying, 3, "rolled")):
        with contextlib.suppress(MilepostError):
            engine.run(made, value, run_id=run_id)
    engine.fork_run(orders, "failed", "add", new_run_id="fork", state_override=lambda state: {**state, "ok": True})
    engine.start(adding, {}, run_id="ready")


def new_engine(**options: Any) -> Engine:
    clock = FakeClock()
    store = MemoryStore(clock=clock, entropy=None, **options)
    engine = Engine(store, flows=FLOWS, clock=clock)
    make_runs(engine)
    return engine
