"""A service that takes orders over HTTP and works on them beside the requests: FastAPI, an engine and its worker.

    pip install fastapi uvicorn
    python service.py [STORE] [PORT]

    curl -X POST localhost:8000/orders/o-17 -H 'content-type: application/json' -d '{"items": ["pen", "ink"]}'
    curl localhost:8000/orders/o-17
    curl 'localhost:8000/orders/o-17/result?wait=10'
    curl -X POST localhost:8000/orders/o-17/cancel

Kill it at any moment (`kill -9`) and start it again: the orders that were open go on where they were. Start a second
one on another port over the same store: the two share the work, and no order is worked on twice at once.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query

from milepost import (
    END,
    Engine,
    Graph,
    MilepostError,
    Retry,
    RunCancelled,
    RunHandle,
    RunNotFoundError,
)

PRICES = {"pen": Decimal("1.50"), "ink": Decimal("7.25"), "paper": Decimal("4.00")}
PACE = float(os.environ.get("PACE", "0.5"))
"""Seconds that each call to the outside world takes."""


@dataclass(frozen=True)
class Order:
    items: list[str]
    total: Decimal = Decimal(0)
    receipt: str = ""
    log: list[str] = field(default_factory=list)


def note(order: Order, line: str) -> Order:
    return replace(order, log=[*order.log, line])


def price(order: Order) -> Order:
    return note(replace(order, total=sum((PRICES[item] for item in order.items), Decimal(0))), "priced")


async def charge(ctx: Any, order: Order) -> Order:
    """Call the bank. It may happen again after a crash: the key is the same then, and the bank charges once."""
    await asyncio.sleep(PACE)
    return note(replace(order, receipt=f"receipt {ctx.idempotency_key[:8]}"), "charged")


async def ship(order: Order) -> Order:
    await asyncio.sleep(PACE)
    return note(order, "shipped")


orders = (
    Graph(Order)
    .add_node("price", price)
    .add_node("charge", charge, retry=Retry(max_attempts=5, backoff=0.5), timeout=30)
    .add_node("ship", ship, retry=Retry(max_attempts=5, backoff=0.5), timeout=30)
    .set_entry("price")
    .add_edge("price", "charge")
    .add_edge("charge", "ship")
    .add_edge("ship", END)
    .compile("orders")
)


def make_app(store: str) -> FastAPI:
    """The service over a store: `sqlite:///orders.db`, `file:///srv/orders` or `postgresql://...`."""
    engine = Engine(store, flows=[orders], lease=10)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with engine, engine.worker(concurrency=20, grace=10):
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders/{run_id}", status_code=202)
    async def start(run_id: str, items: dict[str, list[str]]) -> dict[str, Any]:
        """Take an order. A request that comes twice, because its answer was lost, starts it once."""
        unknown = sorted(set(items.get("items", [])) - set(PRICES))
        if unknown:
            raise HTTPException(422, f"we don't sell {', '.join(unknown)}")
        try:
            handle = await engine.astart(orders, Order(items.get("items", [])), run_id=run_id, if_exists="return")
        except MilepostError as error:  # another order has this id, or it is no id
            raise HTTPException(409, str(error)) from error
        return await told(handle)

    @app.get("/orders/{run_id}")
    async def status(run_id: str) -> dict[str, Any]:
        return await told(engine.handle(run_id, orders))

    @app.get("/orders/{run_id}/result")
    async def result(run_id: str, wait: Annotated[float, Query(ge=0, le=60)] = 0) -> dict[str, Any]:
        """The order as it ended, for whoever waits up to `wait` seconds."""
        handle = engine.handle(run_id, orders)
        try:
            order = await handle.aresult(timeout=wait)
        except TimeoutError as error:
            raise HTTPException(504, str(error)) from error
        except RunNotFoundError as error:
            raise HTTPException(404, f"no order {run_id}") from error
        except RunCancelled as error:
            raise HTTPException(410, str(error)) from error
        except MilepostError as error:
            raise HTTPException(500, str(error)) from error
        return {"total": str(order.total), "receipt": order.receipt, "log": order.log}

    @app.post("/orders/{run_id}/cancel")
    async def cancel(run_id: str, reason: str = "by request") -> dict[str, str]:
        try:
            return {"outcome": await engine.handle(run_id, orders).acancel(reason)}
        except RunNotFoundError as error:
            raise HTTPException(404, f"no order {run_id}") from error

    return app


async def told(handle: RunHandle[Order]) -> dict[str, Any]:
    """What the store knows of an order, and why it does not move."""
    try:
        info = await handle.ainfo()
    except RunNotFoundError as error:
        raise HTTPException(404, f"no order {handle.run_id}") from error
    return {"id": info.run_id, "status": info.status, "next": info.next_node, "why": info.reason}


if __name__ == "__main__":
    import uvicorn

    place = sys.argv[1] if len(sys.argv) > 1 else "sqlite:///orders.db"
    uvicorn.run(make_app(place), port=int(sys.argv[2]) if len(sys.argv) > 2 else 8000, log_level="warning")
