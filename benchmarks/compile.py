"""What it costs to compile a graph, in time and memory, and to draw it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.flows import Counter, builder, count
from benchmarks.report import Figure, at_most, compare
from benchmarks.rounds import Rounds, busy_seconds, interleave
from benchmarks.setting import Setting

__all__ = ["compiling"]

_GOALS = {10: at_most(1), 100: at_most(5), 1000: at_most(50)}


def compiling(setting: Setting) -> Iterator[Figure]:
    """Graphs of several lengths: `compile`, all calls of the builder before it, and memory."""
    lengths = setting.size.compiled
    sides: dict[str, Callable[[], float]] = {}
    for length in dict.fromkeys((5, *lengths)):
        graph, times = builder(Counter, count, length), max(200 // length, 1)
        sides[f"compile {length}"] = partial(busy_seconds, graph.compile, "chain", times=times)
        sides[f"build {length}"] = partial(busy_seconds, builder, Counter, count, length, times=times)
    drawn = builder(Counter, count, 50).compile("chain")
    sides["draw"] = partial(busy_seconds, drawn.to_mermaid, times=5)
    found = interleave(setting.size.rounds, sides)
    for length in dict.fromkeys((5, *lengths)):
        yield compare(
            f"compile {length} nodes", found, measure="ours", unit="ms", scale=1e3, ours=f"compile {length}",
            goal=_GOALS.get(length),
        )  # fmt: skip
        yield compare(f"build {length} nodes", found, measure="ours", unit="ms", scale=1e3, ours=f"build {length}")
    yield compare(
        "draw 50 nodes as Mermaid", found, measure="ours", unit="ms", scale=1e3, ours="draw", goal=at_most(1000)
    )
    few, many = lengths[-2:]
    memory = Rounds({"few": (_bytes_per_node(few),), "many": (_bytes_per_node(many),)})
    yield compare(
        f"memory per node, {many} nodes beside {few}", memory, measure="ratio", unit="KB", scale=1e-3, ours="many",
        limit="few", limit_is=f"{few} nodes", goal=at_most(1.2),
    )  # fmt: skip


def _bytes_per_node(length: int) -> float:
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    graph = builder(Counter, count, length)
    compiled = graph.compile("chain")
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return taken / len(compiled.node_ids)
