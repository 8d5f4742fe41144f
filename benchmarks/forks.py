"""What work side by side costs: a fork beside the same nodes in a line, and the items of a map beside raw inserts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Annotated, Any

from benchmarks.raw import TABLES, connect, insert_each
from benchmarks.report import Figure, at_least, at_most, compare
from benchmarks.rounds import interleave, seconds
from benchmarks.setting import Setting
from milepost import END, CompiledGraph, Graph, MemoryStore, SQLiteStore
from milepost.reducers import total

__all__ = ["forks", "maps"]

_MICRO = 1e6
_BRANCHES = 8
_TEXT = "a line of text for one item " * 36
_LANES = 32
"""Items that are open at once, and so the most that share a commit."""


@dataclass
class Sum:
    """A state that branches add to."""

    n: Annotated[int, total] = 0


def add(state: Sum) -> Sum:
    return Sum(state.n + 1)


async def add_async(state: Sum) -> Sum:
    return Sum(state.n + 1)


def line(node: Any, length: int) -> CompiledGraph[Sum]:
    """So many nodes in a line."""
    names = [f"node-{number}" for number in range(length)]
    graph = Graph(Sum)
    for name in names:
        graph.add_node(name, node)
    for source, target in itertools.pairwise((*names, END)):
        graph.add_edge(source, target)
    return graph.set_entry(names[0]).compile("line")


def fork(node: Any, length: int) -> CompiledGraph[Sum]:
    """Branches of so many nodes each, between a first node and a join."""
    graph = Graph(Sum).add_node("fork", node).add_node("join", node).add_edge("join", END).set_entry("fork")
    for branch in range(_BRANCHES):
        names = [f"branch-{branch}-{number}" for number in range(length)]
        for name in names:
            graph.add_node(name, node)
        for source, target in itertools.pairwise(("fork", *names, "join")):
            graph.add_edge(source, target)
    return graph.compile("fork")


def forks(setting: Setting) -> Iterator[Figure]:
    """Durable nodes a second of a fork, beside those of the same nodes in a line."""
    length = min(setting.size.nodes, 10)
    for kind, node in (("sync", add), ("async", add_async)):
        in_line, at_once = line(node, _BRANCHES * length), fork(node, length)
        for place in setting.places:
            with setting.folder(place) as folder, SQLiteStore(folder / "runs.db") as store:
                found = interleave(
                    setting.size.rounds,
                    {
                        "line": partial(_rate, in_line, store, kind == "async", _BRANCHES * length),
                        "fork": partial(_rate, at_once, store, kind == "async", _BRANCHES * length + 2),
                    },
                )
            yield compare(
                f"nodes a second of a fork of {_BRANCHES} x {length}, {kind}", found, measure="ratio", unit="1/s", scale=1,
                place=place, ours="fork", limit="line", limit_is="the same nodes in a line",
                goal=at_least(2.5) if place == "disk" else None,
            )  # fmt: skip


def _rate(graph: CompiledGraph[Sum], store: SQLiteStore, is_async: bool, count: int) -> float:
    return count / _taken(graph, Sum(), store, is_async)


def _taken(graph: CompiledGraph[Any], state: Any, store: SQLiteStore | None, is_async: bool) -> float:
    began = perf_counter()
    if is_async:
        asyncio.run(graph.arun(state, store=store))
    else:
        graph.run(state, store=store)
    return perf_counter() - began


def text(item: int) -> str:
    return _TEXT


async def text_async(item: int) -> str:
    return _TEXT


def mapped(item: Callable[[int], Any]) -> CompiledGraph[dict[str, int]]:
    """A map over as many numbers as the state says, whose results have a kilobyte each."""
    graph: Graph[dict[str, int]] = Graph(dict)
    graph.add_map("map", lambda state: range(state["n"]), item, merge=lambda state, results: state, max_parallel=_LANES)
    return graph.add_edge("map", END).set_entry("map").compile("map")


def maps(setting: Setting) -> Iterator[Figure]:
    """An item of a map, beside the raw inserts of the same bytes: each with a commit, and as many to a commit as there are."""
    times = setting.size.nodes * 10
    sizes = _written(min(times, 20))
    for kind, item in (("sync", text), ("async", text_async)):
        graph, is_async = mapped(item), kind == "async"
        for place in setting.places:
            sides = {
                "ours": partial(_in_a_file, setting, place, graph, is_async, times),
                "each": partial(_raw, setting, place, sizes, times, 1),
                "shared": partial(_raw, setting, place, sizes, times, _LANES),
                "unsaved": lambda graph=graph, is_async=is_async: _taken(graph, {"n": times}, None, is_async) / times,
            }
            found = interleave(setting.size.long_rounds, sides)
            yield compare(
                f"item of a map, 1 KB, {kind}", found, measure="ratio", unit="us", scale=_MICRO, place=place, limit="each",
                limit_is="raw insert and commit", goal=at_most(1.3) if place == "disk" else None,
            )  # fmt: skip
            yield compare(
                f"item of a map beyond its commit, {kind}", found, measure="beyond", unit="us", scale=_MICRO, place=place,
                limit="shared", limit_is=f"raw inserts, {_LANES} to a commit", goal=at_most(60),
            )  # fmt: skip


def _in_a_file(setting: Setting, place: str, graph: CompiledGraph[Any], is_async: bool, times: int) -> float:
    with setting.folder(place) as folder, SQLiteStore(folder / "runs.db") as store:
        return _taken(graph, {"n": times}, store, is_async) / times


def _raw(setting: Setting, place: str, sizes: tuple[int, ...], times: int, batch: int) -> float:
    with setting.folder(place) as folder:
        connection = connect(folder / "raw.db", next(iter(TABLES)))
        try:
            if batch == 1:
                return insert_each(connection, "run", sizes, times)
            return seconds(_insert, connection, sizes, times, batch) / times
        finally:
            connection.close()


def _insert(connection: Any, sizes: tuple[int, ...], times: int, batch: int) -> None:
    data = bytes(max(sizes))
    for first in range(0, times, batch):
        connection.execute("BEGIN IMMEDIATE")
        for number in range(first, min(first + batch, times)):
            size = sizes[number % len(sizes)]
            connection.execute("INSERT INTO records (run, id, data) VALUES (?, ?, ?)", ("run", number, data[:size]))
        connection.execute("COMMIT")


def _written(times: int) -> tuple[int, ...]:
    """The bytes of each record of an item."""
    store = MemoryStore()
    mapped(text).run({"n": times}, store=store, run_id="run")
    records = store.read("run", kinds=("checkpoint",))[:-1]
    return tuple(len(record.header or b"") + len(record.payload or b"") for record in records)
