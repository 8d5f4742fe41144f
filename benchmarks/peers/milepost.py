"""Milepost: a graph over a typed state."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import make_dataclass
from typing import Any

from benchmarks.peers.peer import Peer, Place
from milepost import END, CompiledGraph, Graph, SQLiteStore, Store, open_store

__all__ = ["Milepost"]


class Milepost(Peer):
    """One node and a router that goes back to it. Runs side by side are asyncio tasks."""

    def unsaved(self, times: int) -> None:
        self.graph.run(self.begin, max_iterations=None)

    @contextmanager
    def opened(self, place: Place) -> Iterator[Store]:
        with SQLiteStore(place.path) if place.path else open_store(place.dsn) as store:
            yield store

    def prepare(self, store: Any, times: int) -> None:
        self.graph, self.begin = self._loop(times)

    def settings(self, store: Store) -> str:
        if isinstance(store, SQLiteStore):
            return 'SQLiteStore as it comes, durability="full": journal_mode=WAL synchronous=FULL'
        return "PostgresStore as it comes"

    def run(self, store: Any, run_id: str, times: int) -> None:
        self.graph.run(self.begin, store=store, run_id=run_id, max_iterations=None)

    def resume(self, store: Any, run_id: str, times: int) -> None:
        self.graph.resume(store, run_id, max_iterations=None, max_crashes=None)  # it dies again and again at one place

    def together(self, store: Any, run_ids: list[str], times: int) -> None:
        graph, begin = self._loop(times, is_async=True)

        async def work() -> None:
            await asyncio.gather(
                *(graph.arun(begin, store=store, run_id=run_id, max_iterations=None) for run_id in run_ids)
            )

        asyncio.run(work())

    def _loop(self, times: int, *, is_async: bool = False) -> tuple[CompiledGraph[Any], Any]:
        task, turn = self.task, self.turn
        state_type: Any = make_dataclass("State", [("n", int), ("value", task.value_type)], frozen=True)

        def work(state: Any) -> Any:
            return state_type(state.n + 1, task.merged(state.value, turn(state.n)))

        async def awaited(state: Any) -> Any:
            return work(state)

        graph: Graph[Any] = Graph(state_type)
        graph.add_node("work", awaited if is_async else work).set_entry("work")
        graph.add_conditional_edge("work", lambda state: "work" if state.n < times else END, ["work", END])
        return graph.compile("loop"), state_type(0, task.begin())
