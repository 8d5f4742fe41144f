"""The example service, started for real: it takes orders, is killed, goes on, cancels, shares its work, and drains."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

SERVICE = Path(__file__).resolve().parents[2] / "examples" / "service.py"


class Service:
    """A process of the service."""

    def __init__(self, store: str, folder: Path, pace: float) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = subprocess.Popen(
            [sys.executable, str(SERVICE), store, str(self.port)],
            cwd=folder,
            env={**os.environ, "PACE": str(pace)},
            stderr=subprocess.PIPE,
        )
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30)
        deadline = time.monotonic() + 30
        while True:
            try:
                self.client.get("/orders/nobody")
                return
            except httpx.TransportError:
                assert self.process.poll() is None, self.process.stderr.read().decode()
                assert time.monotonic() < deadline, "the service did not come up"
                time.sleep(0.02)

    def post(self, path: str, **body: Any) -> Any:
        return self.client.post(path, json=body)

    def get(self, path: str) -> Any:
        return self.client.get(path)

    def await_next(self, run_id: str, node_id: str) -> None:
        """Wait until the order is about to enter a node, or in it."""
        deadline = time.monotonic() + 20
        while self.get(f"/orders/{run_id}").json()["next"] != node_id:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def end(self, how: signal.Signals) -> int:
        self.client.close()
        self.process.send_signal(how)
        code = self.process.wait(30)
        self.process.stderr.close()
        return code


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    services: list[Service] = []

    def begin(pace: float = 0.02) -> Service:
        services.append(Service(f"sqlite:///{tmp_path}/orders.db", tmp_path, pace))
        return services[-1]

    yield begin
    for service in services:
        if service.process.poll() is None:
            service.end(signal.SIGKILL)


def test_an_order_is_taken_told_of_and_finished(serve):
    service = serve()
    answer = service.post("/orders/o-1", items=["pen", "ink"])
    assert (202, "o-1") == (answer.status_code, answer.json()["id"])
    done = service.get("/orders/o-1/result?wait=20")
    assert (200, "8.75", ["priced", "charged", "shipped"]) == (
        done.status_code,
        done.json()["total"],
        done.json()["log"],
    )
    assert "finished" == service.get("/orders/o-1").json()["status"]
    again = service.post("/orders/o-1", items=["pen", "ink"])
    assert (202, "finished") == (again.status_code, again.json()["status"])
    assert 409 == service.post("/orders/o-1", items=["paper"]).status_code
    assert 422 == service.post("/orders/o-2", items=["elephant"]).status_code
    assert [404, 404, 404] == [
        service.get("/orders/o-2").status_code,
        service.get("/orders/o-2/result").status_code,
        service.post("/orders/o-2/cancel").status_code,
    ]


def test_a_killed_service_goes_on_with_its_orders(serve):
    first = serve(pace=30)
    first.post("/orders/o-1", items=["pen"])
    first.await_next("o-1", "charge")
    assert -signal.SIGKILL == first.end(signal.SIGKILL)
    second = serve()
    done = second.get("/orders/o-1/result?wait=20").json()
    assert (["priced", "charged", "shipped"], "1.50") == (done["log"], done["total"])


def test_another_service_takes_over_what_a_killed_one_had(serve):
    second = serve()
    first = serve(pace=30)
    for number in range(40):  # each takes some of them; those of the slow one stand still
        first.post(f"/orders/o-{number}", items=["pen"])
    while "ready" in (statuses := [first.get(f"/orders/o-{n}").json()["status"] for n in range(40)]):
        time.sleep(0.01)
    stuck = [n for n, status in enumerate(statuses) if status != "finished"]
    assert stuck
    first.end(signal.SIGKILL)
    # Its leases are good for seconds yet: that its process is gone is noticed before.
    assert [200] * len(stuck) == [second.get(f"/orders/o-{number}/result?wait=8").status_code for number in stuck]


def test_an_order_is_cancelled_in_the_middle_of_a_call(serve):
    service = serve(pace=30)
    service.post("/orders/o-1", items=["pen"])
    service.await_next("o-1", "charge")
    assert "requested" == service.post("/orders/o-1/cancel").json()["outcome"]
    ended = service.get("/orders/o-1/result?wait=10")
    assert (410, "cancelled") == (ended.status_code, service.get("/orders/o-1").json()["status"])
    assert "ended" == service.post("/orders/o-1/cancel").json()["outcome"]


def test_a_service_that_is_stopped_gives_its_orders_back(serve):
    first = serve(pace=0.4)
    for number in range(5):
        first.post(f"/orders/o-{number}", items=["pen"])
    first.await_next("o-4", "charge")
    assert first.end(signal.SIGTERM) in {0, -signal.SIGTERM}
    second = serve()
    for number in range(5):
        done = second.get(f"/orders/o-{number}/result?wait=20").json()
        assert ["priced", "charged", "shipped"] == done["log"]
