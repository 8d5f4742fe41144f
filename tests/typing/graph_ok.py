"""What type checkers must accept of graphs: read by mypy and pyright, never run."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypedDict, assert_type

from milepost.context import Context
from milepost.flow import END, START, Flow
from milepost.graph import CompiledGraph, Graph
from milepost.reducers import append, largest, union
from milepost.retry import Retry


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
flow: Flow = orders


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
