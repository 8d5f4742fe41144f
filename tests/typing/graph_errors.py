"""What type checkers must refuse of graphs: read by mypy and pyright, never run.

Each error is expected by a comment, and a comment that expects too much is an error itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from milepost.context import Context
from milepost.graph import CompiledGraph, Graph


@dataclass
class Order:
    total: int = 0


@dataclass
class Invoice:
    number: str = ""


def of_invoice(ctx: Context[Any], invoice: Invoice) -> Invoice:
    return invoice


async def of_invoice_later(invoice: Invoice) -> Invoice:
    return invoice


def to_invoice(order: Order) -> Invoice:
    return Invoice()


async def to_invoice_later(ctx: Context[Any], order: Order) -> Invoice:
    return Invoice()


def forgets(order: Order) -> None:
    order.total = 1


def turned(order: Order, ctx: Context[Any]) -> Order:
    return order


def of_three(ctx: Context[Any], order: Order, rate: float) -> Order:
    return order


def keep(order: Order) -> Order:
    return order


graph = Graph(Order)
graph.add_node("a", of_invoice)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_node("a", of_invoice_later)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_node("a", to_invoice)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_node("a", to_invoice_later)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_node("a", forgets)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_node("a", turned)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_node("a", of_three)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_node("a", keep, retry=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_node("a", keep, timeout="30")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_node(1, keep)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_conditional_edge("a", of_invoice)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_conditional_edge("a", turned)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_conditional_edge("a", keep, 7)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_edge("a", None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Graph(Order())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Graph(Order, unknown_fields="keep")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
assert_type(graph.compile(), CompiledGraph[Invoice])  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure]
graph.compile().entry = "b"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
