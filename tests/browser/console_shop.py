"""The flows of a shop, for consoles to show: a graph with everything that a graph may have, and small ones.

The clock is moved by the nodes themselves, so that runs look the same each time.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
from dataclasses import dataclass
from typing import Any, TypedDict

from milepost import END, START, Engine, Graph, MemoryStore, Retry, step, workflow
from milepost.errors import MilepostError
from milepost.testing import FakeClock

CLOCK = FakeClock()


class Order(TypedDict, total=False):
    order: str
    total: int
    address: str
    boxes: list[int]
    labels: list[str]
    approved: bool
    tries: int


@dataclass
class Approval:
    """What somebody says who approves an order."""

    amount: int
    note: str = ""


def of_the_shop(function: Any) -> Any:
    """Have tracebacks tell of a function as one of `shop/orders.py`."""
    name = "shop/orders.py"
    linecache.cache[name] = (0, None, linecache.getlines(__file__), name)
    function.__code__ = function.__code__.replace(co_filename=name)
    return function


def takes(seconds: float, **changes: Any) -> Any:
    """A node that takes so long and changes that."""

    def work(state: Order) -> Order:
        CLOCK.advance(seconds)
        return Order(**changes)

    return work


@of_the_shop
def charge(ctx: Any, state: Order) -> Order:
    CLOCK.advance(0.8)
    if ctx.attempt == 1:
        raise ConnectionError("the payment service does not answer (502)")
    return {"total": 1250}


def pack(box: int) -> str:
    CLOCK.advance(0.1)
    return f"box {box}"


def asked(state: Order) -> str:
    return f"Ship order {state['order']} for {state['total']}.00 EUR?"


@of_the_shop
def label(state: Order) -> Order:
    CLOCK.advance(0.3)
    if not state.get("address"):
        raise ValueError(f"order {state.get('order')} has no address")
    return {}


parcel = (
    Graph(Order, partial=True)
    .add_node("pick", takes(0.7))
    .add_node("weigh", takes(0.2))
    .add_node("label", label)
    .add_edge(START, "pick")
    .add_edge("pick", "weigh")
    .add_conditional_edge("weigh", lambda state: "label", {"label": "label", "too heavy": "pick"})
    .add_edge("label", END)
    .compile("parcel")
)
orders = (
    Graph(Order, partial=True)
    .add_node("load", takes(0.4, boxes=[*range(12)]))
    .add_node("charge_card", charge, retry=Retry(max_attempts=4, backoff=0, jitter=False))
    .add_node("check_fraud", takes(0.9))
    .add_node("reserve_stock", takes(0.5))
    .add_node("decide", takes(0.1), merge=lambda state, branches: {})
    .add_map("pack", over=lambda s: s["boxes"], fn=pack, merge=lambda s, found: {"labels": found}, max_parallel=1)
    .add_wait("approval", "approval", apply=lambda s, reply: {"approved": True}, payload=Approval, prompt=asked)
    .add_subgraph("parcel", parcel)
    .add_node("send_receipt", takes(0.2))
    .add_edge(START, "load")
    .add_edge("load", "charge_card")
    .add_edge("charge_card", "check_fraud")
    .add_edge("charge_card", "reserve_stock")
    .add_edge("check_fraud", "decide")
    .add_edge("reserve_stock", "decide")
    .add_edge("decide", "pack")
    .add_edge("pack", "approval")
    .add_conditional_edge("approval", lambda s: "yes" if s["approved"] else "no", {"yes": "parcel", "no": "load"})
    .add_edge("parcel", "send_receipt")
    .add_edge("send_receipt", END)
    .compile("orders")
)
IS_MENDED = False


@of_the_shop
def price(state: dict) -> dict:
    if not IS_MENDED and not state.get("price"):
        raise LookupError(f"no price for {state.get('item', 'it')}")
    return {**state, "price": state.get("price", 12)}


prices = (
    Graph(dict)
    .add_node("find", lambda state: {**state, "found": True})
    .add_node("price", price)
    .add_edge(START, "find")
    .add_edge("find", "price")
    .add_edge("price", END)
    .compile("prices")
)
asking = (
    Graph(dict)
    .add_wait("boss", "boss", apply=lambda s, reply: {**s, "yes": reply.payload}, payload=bool, prompt="Pay 12 EUR?")
    .add_edge(START, "boss")
    .add_edge("boss", END)
    .compile("asking")
)


@workflow("refunds")
def refunds(order: str):
    found = yield from step("find").python(lambda: order)
    yield from step("refund").python(lambda: 1 / 0)
    return found


FLOWS = (orders, prices, asking, refunds)


def new_engine(store: Any = None, **options: Any) -> Engine:
    return Engine(MemoryStore() if store is None else store, flows=FLOWS, **options)


def fail(engine: Engine, flow: Any, value: Any, run_id: str, **options: Any) -> None:
    """Run a flow that does not come to its end."""
    with contextlib.suppress(MilepostError):
        engine.run(flow, value, run_id=run_id, **options)


def full_engine() -> Engine:
    """An engine on a store with a run of each kind, the same each time."""
    CLOCK.set(FakeClock().now())
    engine = new_engine(MemoryStore(clock=CLOCK), clock=CLOCK)
    for number in range(1, 5):
        CLOCK.advance(minutes=7)
        engine.run(prices, {"item": f"book {number}", "price": 10 + number}, run_id=f"price-{number}")
    for number in (15, 16, 17):
        CLOCK.advance(minutes=11)
        order = Order(order=f"o-{number}")
        fail(engine, orders, order, f"o-{number}", max_parallel=1, tags={"customer": "acme", "region": "north"})
    CLOCK.advance(minutes=30)
    engine.signal("o-17", "approval", {"amount": 1250, "note": "fine"}, by="bea")
    with contextlib.suppress(MilepostError):
        engine.resume(orders, "o-17", max_parallel=1)
    fail(engine, prices, {"item": "lamp"}, "price-5")
    fail(engine, asking, {}, "pay-12")
    fail(engine, refunds, "o-3", "refund-3")
    CLOCK.advance(minutes=2)
    engine.start(prices, {"item": "chair", "price": 3}, run_id="price-6")
    return engine


def work(url: str) -> None:
    """Be a worker with code in which the cause is mended, until nothing is due."""
    global IS_MENDED
    IS_MENDED = True
    engine = new_engine(url)
    print("ready", flush=True)
    sys.stdin.readline()
    engine.worker(poll=0.1).run(until_idle=True)
    engine.close()


if __name__ == "__main__":
    work(sys.argv[1])
