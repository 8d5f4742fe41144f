"""What type checkers must refuse of the verbs of flows and engines: read by mypy and pyright, never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

from milepost.engine.engine import Engine
from milepost.graph.builder import Graph
from milepost.model.reports import RunResult
from milepost.stores.memory import MemoryStore


@dataclass
class Order:
    total: int = 0


@dataclass
class Invoice:
    number: str = ""


orders = Graph(Order).compile("orders")
store = MemoryStore()
engine = Engine(store)

orders.run(Invoice())  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
orders.run(Order(), max_iterations="9")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
orders.resume(9, "r1")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
engine.resume(Graph(Order), "r1")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
engine.retry(orders)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
Engine(store, if_exists="again")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
assert_type(engine.resume(orders, "r1"), RunResult[Order])  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure]

# A misspelled option is named: by pyright as an argument, by mypy as an unexpected keyword of flows.
orders.run(Order(), thread_id="x")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
orders.resume(store, "r1", max_iteration=9)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
orders.stream(Order(), thread_id="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
engine.resume(orders, "r1", thread_id="x")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
engine.run(orders, Order(), thread_id="x")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
engine.start(orders, Order(), thread_id="x")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
engine.list_runs(state="failed")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Engine(store, thread_id="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
