"""A shop's orders as a workflow: stock, payment, a webhook, a person's approval that may take days, and a way back.

    pip install fastapi uvicorn
    python order_service.py [STORE] [PORT]

    curl -X POST localhost:8000/orders/o-17 -H 'content-type: application/json' \\
         -d '{"customer": "ann", "items": {"press": 1}}'
    curl localhost:8000/orders/o-17                       # what it waits for, and what is asked
    curl -X POST localhost:8000/webhooks/payment -H 'content-type: application/json' \\
         -d '{"event": "e-1", "order": "o-17", "payment": "p-1", "paid": true}'
    curl localhost:8000/approvals                         # what people have to decide
    curl -X POST localhost:8000/orders/o-17/approval -H 'content-type: application/json' \\
         -d '{"approved": true, "by": "bea"}'
    curl -X POST localhost:8000/orders/o-17/cancel

An order that fails or is cancelled after it was paid gives the money and the stock back. Kill the service at any moment
(`kill -9`) and start it again: open orders go on where they were, and an order that waits costs no thread and no memory.
`outside.db` stands for the bank and the warehouse.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from fastapi import FastAPI, HTTPException

from milepost import (
    Engine,
    MilepostError,
    RunNotFoundError,
    SkipMarker,
    WorkflowContext,
    WorkflowError,
    current,
    step,
    workflow,
)

PRICES = {"pen": Decimal("1.50"), "ink": Decimal("7.25"), "press": Decimal("1900.00")}
LIMIT = Decimal(1000)
"""Orders of this much need a person's approval."""
PACE = float(os.environ.get("PACE", "0.5"))
"""Seconds that the bank and the warehouse take to answer."""
APPROVAL = float(os.environ.get("APPROVAL", str(3 * 24 * 3600)))
"""Seconds within which somebody must have approved."""


# -- what is said and stored -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    customer: str
    items: dict[str, int]


@dataclass(frozen=True)
class PaymentEvent:
    """What the bank tells by its webhook. It may tell it twice: `event` is the same then."""

    event: str
    order: str
    payment: str
    paid: bool


@dataclass(frozen=True)
class Decision:
    approved: bool
    by: str
    note: str = ""


@dataclass(frozen=True)
class Receipt:
    total: Decimal
    payment: str
    parcel: str
    approved_by: str


# -- the world outside -------------------------------------------------------------------------------------


async def outside(key: str, act: str, of: str) -> None:
    """Have something done by the bank or the warehouse, which do what has the same key once."""
    with closing(sqlite3.connect(os.environ.get("OUTSIDE", "outside.db"))) as world, world:
        world.execute("CREATE TABLE IF NOT EXISTS acts (key TEXT PRIMARY KEY, act TEXT, of TEXT)")
        world.execute("INSERT OR IGNORE INTO acts VALUES (?, ?, ?)", (key, act, of))
    await asyncio.sleep(PACE)  # the act is done, and its answer is on the way: the worst moment to be killed


def price(order: Order) -> Decimal:
    return sum((PRICES[item] * count for item, count in order.items.items()), Decimal(0))


async def reserve(order: Order) -> str:
    reservation = f"r-{current().idempotency_key[:8]}"
    await outside(reservation, "reserve", ", ".join(order.items))
    return reservation


async def release(ctx: WorkflowContext, reservation: str) -> None:
    await outside(f"{reservation} released", "release", reservation)


async def charge(customer: str, total: Decimal) -> str:
    """Take the money. After a crash this is called again, with the same key: the bank takes it once."""
    payment = f"p-{current().idempotency_key[:8]}"
    await outside(payment, "charge", f"{customer} {total}")
    return payment


async def refund(ctx: WorkflowContext, payment: str) -> None:
    await outside(f"{payment} refunded", "refund", payment)


async def ship(order: Order) -> str:
    parcel = f"parcel {current().idempotency_key[:8]}"
    await outside(parcel, "ship", order.customer)
    return parcel


# -- the workflow ------------------------------------------------------------------------------------------


@workflow("orders")
async def fulfil(ctx: WorkflowContext, order: Order) -> Receipt:
    """Each `await` of a step is recorded when it is done; what is raised here undoes what has a rollback."""
    total = await step("price").python(price, args=(order,))
    await step("reserve").python(reserve, args=(order,)).retry(5).with_rollback(release)
    payment = await step("charge").python(charge, args=(order.customer, total)).retry(5).with_rollback(refund)

    told = await step("paid").wait_for("payment", timeout=3600, payload=PaymentEvent)
    if told.payload is None or not told.payload.paid:
        raise WorkflowError("the bank did not confirm the payment")

    question = {"question": "ship this order?", "customer": order.customer, "total": str(total)}
    answer = await (
        step("approval")
        .wait_for("approval", timeout=APPROVAL, prompt=question, payload=Decision)
        .when(lambda ctx: total >= LIMIT)
    )
    by = "nobody had to"
    if not isinstance(answer, SkipMarker):
        if answer.payload is None:
            raise WorkflowError("nobody approved it in time")
        by = answer.payload.by
        if not answer.payload.approved:
            raise WorkflowError(f"{by} said no: {answer.payload.note}")

    parcel = await step("ship").python(ship, args=(order,)).retry(5).timeout(60)
    return Receipt(total, payment, parcel, by)


# -- the service -------------------------------------------------------------------------------------------


def make_app(store: str) -> FastAPI:
    """The service over a store: `sqlite:///orders.db`, `file:///srv/orders` or `postgresql://...`."""
    engine = Engine(store, flows=[fulfil], lease=10)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with engine, engine.worker(concurrency=20, poll=0.5, grace=10):
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders/{run_id}", status_code=202)
    async def place(run_id: str, order: Order) -> dict[str, Any]:
        """Take an order. A request that comes twice, because its answer was lost, places it once."""
        unknown = sorted(set(order.items) - set(PRICES))
        if unknown:
            raise HTTPException(422, f"we don't sell {', '.join(unknown)}")
        with refusals(run_id):
            await engine.astart(fulfil.bind(order), run_id=run_id, if_exists="return")
        return await status(run_id)

    @app.get("/orders/{run_id}")
    async def status(run_id: str) -> dict[str, Any]:
        """Where an order is, and what it waits for; its receipt once it has one."""
        handle = engine.handle(run_id, fulfil)
        with refusals(run_id):
            info = await handle.ainfo()
            receipt = await handle.aresult(timeout=10) if info.status == "finished" else None
        waits = [{"for": wait.signal, "prompt": wait.prompt, "until": wait.wake_at} for wait in info.waiting_for]
        return {"id": run_id, "status": info.status, "why": info.reason, "waits": waits, "receipt": receipt}

    @app.post("/webhooks/payment")
    async def paid(event: PaymentEvent) -> dict[str, str]:
        """The bank's webhook. It may come before the order waits for it, and more than once."""
        with refusals(event.order):
            told = await engine.asignal(event.order, "payment", asdict(event), signal_id=event.event)
        return {"outcome": told}

    @app.get("/approvals")
    async def approvals() -> list[dict[str, Any]]:
        """What people have to decide."""
        runs = await engine.alist_runs(flow="orders", status="waiting")
        return [
            {"order": info.run_id, **wait.prompt, "until": wait.wake_at}
            for info in runs
            for wait in info.waiting_for
            if wait.signal == "approval"
        ]

    @app.post("/orders/{run_id}/approval")
    async def decide(run_id: str, decision: Decision) -> dict[str, str]:
        """Somebody's decision. It answers the question that is open now, and no other: a second one is refused."""
        with refusals(run_id):
            return {"outcome": await engine.asignal(run_id, "approval", asdict(decision), to="approval#1")}

    @app.post("/orders/{run_id}/cancel")
    async def cancel(run_id: str, reason: str = "by request") -> dict[str, str]:
        with refusals(run_id):
            return {"outcome": await engine.acancel(run_id, reason)}

    return app


@contextmanager
def refusals(run_id: str) -> Iterator[None]:
    """Answer with a status what Milepost refuses."""
    try:
        yield
    except RunNotFoundError as error:
        raise HTTPException(404, f"no order {run_id}") from error
    except MilepostError as error:
        raise HTTPException(409, str(error)) from error


if __name__ == "__main__":
    import uvicorn

    place = sys.argv[1] if len(sys.argv) > 1 else "sqlite:///orders.db"
    uvicorn.run(make_app(place), port=int(sys.argv[2]) if len(sys.argv) > 2 else 8000, log_level="warning")
