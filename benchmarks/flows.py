"""The graphs that are measured. Their nodes do next to nothing, so that what is left is the library."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from milepost import END, CompiledGraph, Graph

__all__ = ["Counter", "Page", "branching", "chain", "count", "count_async", "loop", "page"]


@dataclass(frozen=True)
class Counter:
    """The smallest state: nothing but how far the run is."""

    n: int = 0


@dataclass(frozen=True)
class Page:
    """A state of a given size."""

    n: int
    text: str


def page(size: int) -> Page:
    """A `Page` that encodes to about `size` bytes."""
    words = itertools.cycle(("durable", "workflow", "node", "state", "record", "journal"))
    text = " ".join(itertools.islice(words, size // 5 + 1))
    return Page(0, text[: max(size - 20, 0)])


def count(state: Counter) -> Counter:
    """The node of all graphs over `Counter`."""
    return Counter(state.n + 1)


async def count_async(state: Counter) -> Counter:
    """`count`, awaited."""
    return Counter(state.n + 1)


def turn(state: Page) -> Page:
    """The node of all graphs over `Page`."""
    return Page(state.n + 1, state.text)


async def turn_async(state: Page) -> Page:
    """`turn`, awaited."""
    return Page(state.n + 1, state.text)


def loop(state_type: Any, node: Any, times: int) -> CompiledGraph[Any]:
    """One node and a router that goes back to it until the state's `n` has come to `times`."""

    def again(state: Any) -> str:
        return "work" if state.n < times else END

    graph: Graph[Any] = Graph(state_type)
    graph.add_node("work", node).set_entry("work").add_conditional_edge("work", again, ["work", END])
    return graph.compile("loop")


def chain(state_type: Any, node: Any, length: int, *, is_routed: bool = False) -> CompiledGraph[Any]:
    """`length` nodes in a line, joined by edges, or by routers."""
    return builder(state_type, node, length, is_routed=is_routed).compile("chain")


def builder(state_type: Any, node: Any, length: int, *, is_routed: bool = False) -> Graph[Any]:
    """The graph of `chain` before it is compiled."""
    graph: Graph[Any] = Graph(state_type)
    graph.set_entry("node-0")
    for number in range(length):
        source, target = f"node-{number}", f"node-{number + 1}" if number + 1 < length else END
        graph.add_node(source, node)
        if is_routed:
            graph.add_conditional_edge(source, _always(target), [target])
        else:
            graph.add_edge(source, target)
    return graph


def _always(target: str) -> Callable[[Any], str]:
    def router(state: Any) -> str:
        return target

    return router


def branching() -> CompiledGraph[Counter]:
    """A node, a router to one of three, and a node where they meet."""
    graph = Graph(Counter)
    graph.add_node("first", count).set_entry("first").add_node("meet", count).add_edge("meet", END)
    for number in range(3):
        graph.add_node(f"way-{number}", count).add_edge(f"way-{number}", "meet")
    graph.add_conditional_edge("first", lambda state: f"way-{state.n % 3}", ["way-0", "way-1", "way-2"])
    return graph.compile("branching")
