"""The console inside a service: FastAPI with orders, a worker, and web pages of their runs under /milepost.

    pip install fastapi 'milepost[console]'
    python console_in_fastapi.py [STORE] [PORT]

    curl -X POST localhost:8000/orders/o-17
    open http://localhost:8000/milepost/?as=ada

The application lets people in: here a name in the address becomes a session, which stands for your own login. Ada may act
on runs, everybody else only looks.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from secrets import token_urlsafe
from typing import Any

from fastapi import FastAPI, Request, Response

from milepost import Engine, Steps, step, workflow
from milepost.console import console

ADMINS = {"ada"}


@workflow("orders")
def orders(order: str) -> Steps[str]:
    approved = yield from step("approve").wait_for("approval", payload=bool, prompt=f"ship {order}?")
    if not approved.payload:
        return "refused"
    return (yield from step("ship").python("shipped {}".format, args=(order,)))


def make_app(url: str) -> FastAPI:
    engine = Engine(url, flows=[orders])
    sessions: dict[str, str] = {}

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with engine, engine.worker():
            yield

    app = FastAPI(lifespan=lifespan)

    @app.middleware("http")
    async def log_in(request: Request, go_on: Any) -> Response:
        name, session = request.query_params.get("as"), token_urlsafe()
        if name is None:
            return await go_on(request)
        sessions[session] = name
        # With two slashes at its beginning a path would lead to another host.
        answer = Response(status_code=303, headers={"location": "/" + request.url.path.lstrip("/")})
        answer.set_cookie("session", session, httponly=True, samesite="lax")
        return answer

    @app.post("/orders/{order}")
    async def begin(order: str) -> dict[str, str]:
        handle = await engine.astart(orders, order, run_id=order, if_exists="return")
        return {"run": handle.run_id}

    def user(request: Any) -> str | None:
        return sessions.get(request.cookies.get("session", ""))

    def write(user: str | None, action: str, run_id: str) -> bool:
        return user in ADMINS

    app.mount("/milepost", console(engine, user=user, write=write))
    return app


if __name__ == "__main__":
    import uvicorn

    place = sys.argv[1] if len(sys.argv) > 1 else "sqlite:///console.db"
    uvicorn.run(make_app(place), port=int(sys.argv[2]) if len(sys.argv) > 2 else 8000)
