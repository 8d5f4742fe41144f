"""What type checkers must refuse of graphs: read by mypy and pyright, never run.

Each error is expected by a comment, and a comment that expects too much is an error itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, assert_type

from milepost.executor.context import Context
from milepost.graph.builder import CompiledGraph, Graph
from milepost.model.results import Reply
from milepost.model.retry import Retry


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


def merge_invoices(base: Invoice, branches: Mapping[str, Invoice]) -> Invoice:
    return base


def merge_one(base: Order) -> Order:
    return base


def merge_list(base: Order, branches: list[Order]) -> Order:
    return base


def cents(order: Order) -> list[int]:
    return [order.total]


async def cents_later(order: Order) -> list[int]:
    return [order.total]


def one(order: Order) -> int:
    return order.total


def orders_of(order: Order) -> list[Order]:
    return [order]


def show(amount: int) -> str:
    return str(amount)


async def show_later(amount: int) -> str:
    return str(amount)


def of_text(text: str) -> str:
    return text


async def of_text_later(ctx: Context[Any], text: str) -> str:
    return text


def of_two(amount: int, other: int) -> int:
    return amount + other


def take_texts(order: Order, texts: list[str]) -> Order:
    return order


def take_amounts(order: Order, amounts: list[int]) -> Order:
    return order


def take_orders(order: Order, done: list[Order]) -> Order:
    return order


def take_nothing(order: Order) -> Order:
    return order


async def to_invoice_async(order: Order) -> Invoice:
    return Invoice()


def of_subs(order: Order, invoice: Invoice) -> Order:
    return order


def of_orders(order: Order, other: Order) -> Order:
    return order


def decide(order: Order, reply: Reply[bool]) -> Order:
    return order


async def decide_later(order: Order, reply: Reply[bool]) -> Order:
    return order


def decide_bare(order: Order, payload: bool) -> Order:
    return order


def decide_invoice(invoice: Invoice, reply: Reply[bool]) -> Invoice:
    return invoice


def decide_alone(order: Order) -> Order:
    return order


def due(order: Order) -> datetime:
    return datetime.max


def due_of_invoice(invoice: Invoice) -> datetime:
    return datetime.max


def due_day(order: Order) -> date:
    return date.max


def read_reply(reply: Reply[bool]) -> bool:
    return reply.payload  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


graph = Graph(Order)
orders = Graph(Order).compile()
invoices = Graph(Invoice).compile()
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
graph.compile().entry_point = "b"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]

graph.add_node("j", keep, merge=merge_invoices)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_node("j", keep, merge=merge_one)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_node("j", keep, merge=merge_list)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_node("j", keep, merge={"total": 3})  # type: ignore[arg-type, dict-item]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_node("j", keep, max_parallel=2.5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]

graph.add_map("m", cents, of_text, merge=take_texts)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_map("m", cents, of_text_later, merge=take_texts)  # type: ignore[misc]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_map("m", cents_later, of_text, merge=take_texts)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_map("m", cents, of_two, merge=take_amounts)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_map("m", cents, show, merge=take_amounts)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_map("m", cents, show_later, merge=take_amounts)  # type: ignore[misc, arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_map("m", cents, show, merge=take_nothing)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_map("m", one, show, merge=take_texts)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_map("m", orders_of, invoices, merge=take_orders)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_map("m", cents, orders, merge=take_orders)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_map("m", orders_of, orders, merge=take_texts)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_map("m", cents, show)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
graph.add_map("m", cents, show, merge=take_texts, max_parallel="2")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_map("m", cents, show, merge=take_texts, retry=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_map("m", orders_of, orders, merge=take_orders, retry=Retry())  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_map("m", cents, show, merge=take_texts, merge_branches=merge_list)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]

graph.add_subgraph("s", orders, merge=merge_list)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_subgraph("s", invoices)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
graph.add_subgraph("s", invoices, into=to_invoice)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
graph.add_subgraph("s", invoices, into=keep, out=of_subs)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
graph.add_subgraph("s", invoices, into=to_invoice, out=of_orders)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
graph.add_subgraph("s", orders, into=to_invoice_async, out=of_orders)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
graph.add_subgraph("s", Graph(Order))  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]

graph.add_wait("w", "go", apply=decide, payload=str)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_wait("w", "go", apply=decide_later, payload=str)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_wait("w", "go", apply=decide_bare, payload=bool)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_wait("w", "go", apply=decide_invoice, payload=bool)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_wait("w", "go", apply=decide_alone)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
graph.add_wait("w", "go")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
graph.add_wait("w", 7, apply=decide)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
graph.add_wait("w", "go", apply=decide, timeout="3 days")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
graph.add_wait("w", "go", apply=decide, merge=merge_list)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
graph.add_timer("t", duration=1, merge=merge_list)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
graph.add_timer("t", until=due_of_invoice)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
graph.add_timer("t", until=due_day)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
graph.add_timer("t", until=datetime.max)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
graph.add_timer("t", duration="30")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
