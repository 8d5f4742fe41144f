"""What type checkers must accept of graphs: read by mypy and pyright, never run."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, assert_type

from milepost.executor.context import Context
from milepost.executor.flow import END, START, Flow
from milepost.graph.builder import CompiledGraph, Graph
from milepost.model.results import Reply
from milepost.model.retry import Retry
from milepost.reducers import append, largest, total, union


@dataclass
class Order:
    total: int = 0
    paid: bool = False


@dataclass
class Clients:
    url: str


class Message(TypedDict):
    text: str


class Chat(TypedDict):
    messages: Annotated[list[Message], operator.add]
    turn: int


class Point(NamedTuple):
    x: int = 0


def price(ctx: Context[Clients], order: Order) -> Order:
    order.total += len(ctx.deps.url)
    return order


def alone(order: Order) -> Order:
    return order


async def charge(ctx: Context[Any], order: Order) -> Order:
    return order


async def charge_alone(order: Order) -> Order:
    return order


def later(order: Order) -> Awaitable[Order]:
    return charge_alone(order)


def route(ctx: Context[Any], order: Order) -> str:
    return END if order.paid else "price"


async def route_later(order: Order) -> str:
    return END


def is_paid(order: Order) -> bool:
    return order.paid


class Charger:
    def charge(self, ctx: Context[Any], order: Order) -> Order:
        return order

    async def __call__(self, order: Order) -> Order:
        return order


orders = (
    Graph(Order)
    .add_node("price", price)
    .add_node("charge", charge, retry=Retry(max_attempts=3), timeout=30)
    .add_node("alone", alone)
    .add_node("async-alone", charge_alone)
    .add_node("later", later)
    .add_node("method", Charger().charge)
    .add_node("object", Charger())
    .add_node("lambda", lambda order: order)
    .add_node("lambda-with-context", lambda ctx, order: order)
    .add_edge(START, "price")
    .add_edge("price", "charge")
    .add_conditional_edge("charge", route, ["price", END])
    .add_conditional_edge("alone", route_later)
    .add_conditional_edge("later", is_paid, {True: END, False: "price"})
    .add_conditional_edge("object", lambda ctx, order: END if order.paid else "price")
    .set_entry("price")
    .compile("orders")
)
assert_type(orders, CompiledGraph[Order])
assert_type(Graph(Order), Graph[Order])
flow: Flow = orders._definition


def call_model(chat: Chat) -> dict[str, list[Message]]:
    return {"messages": [{"text": "hi"}]}


async def call_tools(ctx: Context[Any], chat: Chat) -> Mapping[str, object]:
    return {"turn": chat["turn"] + 1}


def whole(chat: Chat) -> Chat:
    return chat


agent = (
    Graph(Chat, partial=True, reducers={"messages": append, "turn": largest, "names": union})
    .add_node("model", call_model)
    .add_node("tools", call_tools)
    .add_node("whole", whole)
    .compile()
)
assert_type(agent, CompiledGraph[Chat])
assert_type(Graph(Point).compile(), CompiledGraph[Point])
assert_type(Graph(dict[str, int]).compile(), CompiledGraph[dict[str, int]])


# -- forks and merges --------------------------------------------------------------------------------------


def merge_orders(base: Order, branches: Mapping[str, Order]) -> Order:
    return Order(base.total + sum(order.total for order in branches.values()))


def merge_dict(base: Order, branches: dict[str, Order]) -> Order:
    return base


async def merge_later(base: Order, branches: Mapping[str, Order]) -> Order:
    return base


def merge_part(base: Chat, branches: Mapping[str, Chat]) -> dict[str, object]:
    return {"turn": len(branches)}


def by_hand(value: int, update: int) -> int:
    return value + update


forked = (
    Graph(Order)
    .add_node("price", price, max_parallel=2, fail_fast=True)
    .add_node("reducers", alone, merge={"total": total, "paid": by_hand})
    .add_node("function", price, merge=merge_orders)
    .add_node("dict", alone, merge=merge_dict)
    .add_node("later", charge, merge=merge_later)
    .add_node("async-alone", charge_alone, merge=merge_orders, timeout=timedelta(seconds=3))
    .add_node("lambda", alone, merge=lambda base, branches: branches["price"])
)
assert_type(forked, Graph[Order])
Graph(Chat, partial=True).add_node("join", call_model, merge=merge_part)


# -- maps --------------------------------------------------------------------------------------------------


def cents(order: Order) -> list[int]:
    return [order.total]


def cents_one_by_one(order: Order) -> Iterator[int]:
    yield order.total


async def cents_later(order: Order) -> list[int]:
    return [order.total]


def show(amount: int) -> str:
    return str(amount)


def show_with_context(ctx: Context[Clients], amount: int) -> str:
    return ctx.deps.url + str(amount)


def show_more(amount: int, width: int = 3) -> str:
    return str(amount).rjust(width)


async def show_later(amount: int) -> str:
    return str(amount)


async def show_with_context_later(ctx: Context[Any], amount: int) -> str:
    return str(amount)


def take_texts(order: Order, texts: list[str]) -> Order:
    return order


def take_any(order: Order, texts: Sequence[object]) -> Order:
    return order


async def take_later(order: Order, texts: list[str]) -> Order:
    return order


def orders_of(order: Order) -> list[Order]:
    return [order, order]


def take_orders(order: Order, done: list[Order]) -> Order:
    return Order(sum(one.total for one in done))


maps = (
    Graph(Order)
    .add_map("plain", cents, show, merge=take_texts)
    .add_map("context", cents, show_with_context, merge=take_texts, max_parallel=3)
    .add_map("tried", cents, show, merge=take_texts, retry=Retry(), timeout=timedelta(seconds=3))
    .add_map("tried-later", cents, show_later, merge=take_texts, retry=None, timeout=0.5)
    .add_map("join", cents, show, merge=take_texts, merge_branches=merge_orders)
    .add_map("graph-join", orders_of, orders, merge=take_orders, merge_branches={"total": total})
    .add_map("default", cents, show_more, merge=take_any)
    .add_map("generator", cents_one_by_one, show, merge=take_texts)
    .add_map("async", cents, show_later, merge=take_texts)
    .add_map("async-context", cents, show_with_context_later, merge=take_later)
    .add_map("all-async", cents_later, show_later, merge=take_later)
    .add_map("graph", orders_of, orders, merge=take_orders)
    .add_map("graph-async", orders_of, orders, merge=lambda order, done: done[0])
    .add_map("lambdas", lambda order: range(order.total), show, merge=lambda order, texts: order)
)
assert_type(maps, Graph[Order])
Graph(Chat, partial=True).add_map(
    "tools",
    lambda chat: chat["messages"],
    lambda message: len(message["text"]),
    merge=lambda chat, sizes: {"turn": sum(sizes)},
)


# -- sub-graphs --------------------------------------------------------------------------------------------


def to_point(order: Order) -> Point:
    return Point(order.total)


def of_point(order: Order, point: Point) -> Order:
    return Order(point.x)


async def to_point_later(order: Order) -> Point:
    return Point(order.total)


async def of_point_later(order: Order, point: Point) -> Order:
    return Order(point.x)


points = Graph(Point).compile()
subs = (
    Graph(Order)
    .add_subgraph("same", orders)
    .add_subgraph("other", points, into=to_point, out=of_point)
    .add_subgraph("async", points, into=to_point_later, out=of_point_later)
    .add_subgraph("mixed", points, into=to_point, out=of_point_later)
    .add_subgraph("join", orders, merge=merge_orders)
    .add_subgraph("other-join", points, into=to_point, out=of_point, merge=merge_later)
    .add_subgraph("lambdas", points, into=lambda order: Point(order.total), out=lambda order, point: Order(point.x))
)
assert_type(subs, Graph[Order])


# -- waits and timers --------------------------------------------------------------------------------------


def decide(order: Order, reply: Reply[bool]) -> Order:
    if reply.payload is not None:
        assert_type(reply.payload, bool)
        order.paid = reply.payload
    return order


async def decide_later(order: Order, reply: Reply[bool]) -> Order:
    return order


def decide_union(order: Order, reply: Reply[bool | int]) -> Order:
    return order


def decide_list(order: Order, reply: Reply[list[bool]]) -> Order:
    return order


def decide_literal(order: Order, reply: Reply[Literal["yes", "no"]]) -> Order:
    return order


def decide_any(order: Order, reply: Reply[Any]) -> Order:
    return order


def decide_part(chat: Chat, reply: Reply[Message]) -> dict[str, list[Message]]:
    return {"messages": [] if reply.payload is None else [reply.payload]}


def ask(order: Order) -> str:
    return f"pay {order.total}?"


def due(order: Order) -> datetime:
    return datetime.max


async def due_later(order: Order) -> datetime:
    return datetime.max


waits = (
    Graph(Order)
    .add_wait("typed", "approval", apply=decide, payload=bool, timeout=timedelta(days=3), prompt=ask)
    .add_wait("async", "approval", apply=decide_later, payload=bool, timeout=60.0, early=False)
    .add_wait("any", "approval", apply=decide_any)
    .add_wait("any-typed", "approval", apply=decide_any, payload=bool, prompt={"pay": 3})
    .add_wait("union", "approval", apply=decide_any, payload=bool | None)
    .add_wait("of-union", "approval", apply=decide_union, payload=bool | int)
    .add_wait("list", "approval", apply=decide_list, payload=list[bool])
    .add_wait("literal", "approval", apply=decide_literal, payload=Literal["yes", "no"])
    .add_wait("lambda", "approval", apply=lambda order, reply: Order(reply.payload or 0), payload=int)
    .add_timer("seconds", duration=30)
    .add_timer("delta", duration=timedelta(hours=1))
    .add_timer("until", until=due)
    .add_timer("until-async", until=due_later)
)
assert_type(waits, Graph[Order])
Graph(Chat, partial=True).add_wait("ask", "answer", apply=decide_part, payload=Message)
assert_type(orders.forks, tuple[str, ...])
