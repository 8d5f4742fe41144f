"""What a node costs when nothing is saved: the executor itself, and the small things that are made for each attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from time import perf_counter, process_time
from typing import Any

from benchmarks.flows import Counter, branching, chain, count, count_async, loop
from benchmarks.report import Figure, at_most, compare
from benchmarks.rounds import busy_seconds, interleave
from benchmarks.setting import Setting
from milepost import MemoryStore, NodeError
from milepost.executor.context import Context, RunScope
from milepost.model.ids import SYSTEM

__all__ = ["everyday", "nodes", "parts"]

_MICRO = 1e6


def nodes(setting: Setting) -> Iterator[Figure]:
    """A node without a store, in a loop and in a chain, sync and async, beside a plain loop that calls the function."""
    size = setting.size
    times, length = size.nodes, min(size.nodes, 100)
    passes = max(times // length, 1)
    looped, looped_async = loop(Counter, count, times), loop(Counter, count_async, times)
    chained, chained_async = chain(Counter, count, length), chain(Counter, count_async, length)

    def plain() -> None:
        state = Counter()
        while state.n < times:
            state = count(state)

    async def plain_async() -> None:
        state = Counter()
        while state.n < times:
            state = await count_async(state)

    def asynchronous(graph: Any, passes: int = 1) -> float:
        async def work() -> float:
            began = process_time()
            for _ in range(passes):
                await graph.arun(Counter(), max_iterations=None)
            return process_time() - began

        return asyncio.run(work())

    async def plain_time() -> float:
        began = process_time()
        await plain_async()
        return process_time() - began

    found = interleave(
        size.rounds,
        {
            "plain": lambda: busy_seconds(plain) / times,
            "loop": lambda: busy_seconds(lambda: looped.run(Counter(), max_iterations=None)) / times,
            "chain": lambda: busy_seconds(chained.run, Counter(), times=passes) / length,
            "plain async": lambda: asyncio.run(plain_time()) / times,
            "async loop": lambda: asynchronous(looped_async) / times,
            "async chain": lambda: asynchronous(chained_async, passes) / passes / length,
        },
    )
    for name, limit, aim in (
        ("loop", "plain", 12),
        ("chain", "plain", 12),
        ("async loop", "plain async", 15),
        ("async chain", "plain async", 15),
    ):
        yield compare(
            f"node without a store, {name}",
            found,
            measure="beyond",
            unit="us",
            scale=_MICRO,
            ours=name,
            limit=limit,
            limit_is="plain loop",
            goal=at_most(20),
            aim=at_most(aim),
        )


def parts(setting: Setting) -> Iterator[Figure]:
    """The context of an attempt, a router's call, an error, an event on its way to a hook."""
    size = setting.size
    length = min(size.nodes, 100)
    times = size.nodes
    scope = RunScope("run", clock=SYSTEM, store=None, deps=None, logger=None)
    passes = max(times // length, 1) * 2
    straight, routed = chain(Counter, count, length), chain(Counter, count, length, is_routed=True)
    delays: list[float] = []
    ended = 0.0

    def stamped(state: Counter) -> Counter:
        nonlocal ended
        ended = perf_counter()
        return Counter(state.n + 1)

    def hook(event: Any) -> None:
        if type(event).__name__ == "NodeCompleted":
            delays.append(perf_counter() - ended)

    watched = chain(Counter, stamped, length)

    def event_delay() -> float:
        delays.clear()
        watched.run(Counter(), hooks=(hook,))
        return sum(delays) / len(delays)

    def error() -> None:
        NodeError("node 'a' failed", op="execute", run_id="run", node_id="a", visit=1, attempt=1, state=None)

    found = interleave(
        size.rounds,
        {
            "context": lambda: busy_seconds(lambda: Context(scope, "a", 1, 1, "", None), times=times),
            "nothing": lambda: busy_seconds(lambda: None, times=times),
            "straight": lambda: busy_seconds(straight.run, Counter(), times=passes) / length,
            "routed": lambda: busy_seconds(routed.run, Counter(), times=passes) / length,
            "error": lambda: busy_seconds(error, times=times),
            "hooked": lambda: busy_seconds(lambda: watched.run(Counter(), hooks=(hook,)), times=passes) / length,
            "event": event_delay,
        },
    )
    for name, ours, limit, limit_is in (
        ("context of an attempt", "context", "nothing", "an empty function"),
        ("router of a node", "routed", "straight", "the node with an edge"),
        ("making an error", "error", "nothing", "an empty function"),
    ):
        yield compare(
            name, found, measure="beyond", unit="us", scale=_MICRO, ours=ours, limit=limit, limit_is=limit_is,
            goal=at_most(5),
        )  # fmt: skip
    yield compare(
        "events of a node to one hook", found, measure="beyond", unit="us", scale=_MICRO, ours="hooked",
        limit="straight", limit_is="the node without a hook",
    )  # fmt: skip
    yield compare(
        "event in a hook after the node's return", found, measure="ours", unit="us", scale=_MICRO, ours="event",
        goal=at_most(1000),
    )  # fmt: skip


def everyday(setting: Setting) -> Iterator[Figure]:
    """Whole runs of small graphs, start and end included, without a store and with one in memory."""
    graphs: dict[str, Any] = {f"{length} nodes in a line": chain(Counter, count, length) for length in (5, 10, 50, 100)}
    graphs["a branch of 3"] = branching()
    graphs |= {f"a loop of {times}": loop(Counter, count, times) for times in (3, 10)}
    times = max(setting.size.nodes // 20, 1)
    for name, graph in graphs.items():

        def kept(graph: Any = graph) -> None:
            graph.run(Counter(), store=MemoryStore())

        found = interleave(
            setting.size.rounds,
            {
                "bare": partial(busy_seconds, graph.run, Counter(), times=times),
                "kept": partial(busy_seconds, kept, times=times),
            },
        )
        yield compare(f"run of {name}", found, measure="ours", unit="us", scale=_MICRO, ours="bare")
        yield compare(
            f"run of {name}, saved in memory", found, measure="ratio", unit="us", scale=_MICRO, ours="kept", limit="bare",
            limit_is="without a store",
        )  # fmt: skip
