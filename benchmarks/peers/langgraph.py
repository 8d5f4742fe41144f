"""LangGraph: a state graph with a loop, durability="sync"."""

from __future__ import annotations

import operator
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypedDict

from langgraph.channels import DeltaChannel
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from benchmarks.peers.peer import Peer, Place, pragmas

__all__ = ["LangGraph", "LangGraphDelta"]


class LangGraph(Peer):
    """A node that returns what changed, and a conditional edge. Runs side by side are threads that share a saver."""

    durability = "sync"
    appending: Any = operator.add
    """What makes a list grow by what a node returns."""

    def unsaved(self, times: int) -> None:
        self.graph.invoke({"n": 0, "value": self.task.begin()}, {"recursion_limit": times + 10})

    @contextmanager
    def opened(self, place: Place) -> Iterator[Any]:
        if place.as_it_comes:
            self.durability = "async"
        if place.path:
            connection = sqlite3.connect(place.path, check_same_thread=False, timeout=5 if place.as_it_comes else 30)
            saver = SqliteSaver(connection)
            saver.setup()
            yield saver
            connection.close()
            return
        from psycopg.rows import dict_row
        from psycopg_pool import ConnectionPool

        options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        with ConnectionPool(place.dsn, min_size=1, max_size=64, kwargs=options) as pool:
            kept = PostgresSaver(pool)  # type: ignore[arg-type]
            kept.setup()
            yield kept

    def prepare(self, store: Any, times: int) -> None:
        self.graph = self._loop(times, store)

    def settings(self, store: Any) -> str:
        kind = pragmas(store.conn.execute) if isinstance(store, SqliteSaver) else "a pool of up to 64 connections"
        return f'{type(store).__name__}, durability="{self.durability}", {kind}'

    def run(self, store: Any, run_id: str, times: int) -> None:
        self._invoke(run_id, times, {"n": 0, "value": self.task.begin()})

    def resume(self, store: Any, run_id: str, times: int) -> None:
        self._invoke(run_id, times, None)

    def _invoke(self, run_id: str, times: int, given: Any) -> None:
        config = {"configurable": {"thread_id": run_id}, "recursion_limit": times + 10}
        self.graph.invoke(given, config, durability=self.durability)

    def _loop(self, times: int, saver: Any) -> Any:
        task, turn = self.task, self.turn
        kept: Any = task.value_type
        if task.is_appended:
            kept = Annotated[list[str], self.appending]

        def work(state: Any) -> Any:
            made = turn(state["n"])
            if task.is_untouched:
                return {"n": state["n"] + 1}
            return {"n": state["n"] + 1, "value": [made] if task.is_appended else task.merged(state["value"], made)}

        builder: Any = StateGraph(TypedDict("State", {"n": int, "value": kept}))  # type: ignore[operator]
        builder.add_node("work", work)
        builder.add_edge(START, "work")
        builder.add_conditional_edges("work", lambda state: "work" if state["n"] < times else END, ["work", END])
        return builder.compile(checkpointer=saver)


class LangGraphDelta(LangGraph):
    """A growing list in the channel that stores differences, which is in beta."""

    @property
    def appending(self) -> Any:
        return DeltaChannel(lambda items, writes: [*items, *(item for write in writes for item in write)])
