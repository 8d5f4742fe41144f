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
