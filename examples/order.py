"""An order is priced and charged: what a graph looks like, and the verbs that run it.

python order.py [STORE]
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, replace
from decimal import Decimal

from milepost import END, Graph, Retry, SQLiteStore
from milepost.events import NodeCompleted


@dataclass(frozen=True)
class Order:
    id: str
    total: Decimal = Decimal(0)
    paid: bool = False


def price(ctx, order: Order) -> Order:
    return replace(order, total=Decimal("12.50"))


def charge(ctx, order: Order) -> Order:
    """Stands in for a call to a payment service, which is down at the first attempt.

    A real one is given `ctx.idempotency_key`: it is the same for every attempt and after a crash, so that a payment that
    went through just before the process died is not made twice.
    """
    if ctx.attempt == 1:
        raise ConnectionError("the payment service is down")
    print(f"  charged {order.total} for {order.id}, key {ctx.idempotency_key[:8]}")
    return replace(order, paid=True)


graph = (
    Graph(Order)
    .add_node("price", price)
    .add_node("charge", charge, retry=Retry(max_attempts=3, backoff=0.1), timeout=30)
    .add_edge("price", "charge")
    .add_conditional_edge("charge", lambda ctx, o: END if o.paid else "price", ["price", END])
    .set_entry("price")
    .compile("orders")
)


def discount(order: Order) -> Order:
    return replace(order, total=Decimal("10.00"))


def check(order: Order) -> str | None:
    """A text refuses the state; None lets it pass."""
    return "the total is negative" if order.total < 0 else None


def main(path: str) -> None:
    with SQLiteStore(path) as store:
        # A second start of this program finds the run: with if_exists="resume" it goes on, or gives the stored result.
        order = graph.run(Order("o-17"), store=store, run_id="o-17", if_exists="resume")
        print("run:        ", order)
        print("resume:     ", graph.resume(store, "o-17"))
        order = graph.resume_from(store, "o-17", "price", state_override=discount, revalidate=check)
        print("resume_from:", order)

        order = asyncio.run(graph.arun(Order("o-18"), store=store, run_id="o-18", if_exists="resume"))
        print("arun:       ", order)

        for event in graph.stream(Order("o-19"), store=store, run_id="o-19", if_exists="resume"):
            if isinstance(event, NodeCompleted):
                print("stream:     ", event.node_id, event.state)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "orders.db")
