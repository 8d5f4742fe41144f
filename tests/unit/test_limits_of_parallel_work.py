"""`max_parallel` of a verb bounds the calls of a whole run, however maps and forks are nested."""

from __future__ import annotations

import threading
import time

import pytest

from milepost import END, START, CompiledGraph, Graph, Steps, step, workflow
from milepost.reducers import append


class Gauge:
    """Knows how many calls ran at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0

    def __call__(self, state: list[int]) -> list[int]:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(0.02)  # long enough that calls which may run at once do
        with self._lock:
            self._now -= 1
        return state


def forking(gauge: Gauge) -> CompiledGraph[list[int]]:
    graph = Graph(list[int])
    for name in ("fork", "a", "b", "c"):
        graph.add_node(name, gauge)
    graph.add_node("join", gauge, merge=lambda base, branches: base)
    graph.add_edge(START, "fork").add_edge("join", END)
    for branch in ("a", "b", "c"):
        graph.add_edge("fork", branch).add_edge(branch, "join")
    return graph.compile("forking")


@pytest.mark.parametrize("items", [2, 5])
@pytest.mark.parametrize("limit", [1, 2])
def test_the_limit_of_a_run_is_for_the_branches_in_all_items_of_a_map_together(items: int, limit: int) -> None:
    gauge = Gauge()
    mapped = (
        Graph(list[int])
        .add_map("m", lambda state: [[n] for n in range(items)], forking(gauge), merge=lambda state, found: state)
        .add_edge(START, "m")
        .add_edge("m", END)
        .compile("mapped")
    )
    mapped.run([], max_parallel=limit)
    assert limit == gauge.most


def test_the_limit_of_a_run_is_for_the_graphs_in_a_parallel_step_together() -> None:
    gauge = Gauge()
    graph = forking(gauge)

    @workflow("beside")
    def beside() -> Steps[None]:
        yield from step("both").parallel([step("one").subworkflow(graph, [1]), step("two").subworkflow(graph, [2])])

    beside.run(max_parallel=2)
    assert 2 == gauge.most


def test_nested_forks_share_the_limit_of_the_run() -> None:
    gauge = Gauge()
    inner = forking(gauge)
    graph = Graph(list[int]).add_node("begin", gauge)
    graph.add_subgraph("one", inner).add_subgraph("two", inner)
    graph.add_node("last", gauge, merge=lambda base, branches: append(branches["one"], branches["two"]))
    graph.add_edge(START, "begin").add_edge("begin", "one").add_edge("begin", "two")
    graph.add_edge("one", "last").add_edge("two", "last").add_edge("last", END)
    graph.compile("nested").run([1], max_parallel=2)
    assert 2 == gauge.most
