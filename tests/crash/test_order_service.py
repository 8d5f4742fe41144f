"""The example of orders, started for real: paid, approved, rejected, cancelled, killed, and left waiting too long.

The bank and the warehouse write down what they did in a file of their own, so that what happened outside is seen there,
not in what the service says of itself.
"""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

SERVICE = Path(__file__).resolve().parents[2] / "examples" / "order_service.py"
DAYS = 3 * 24 * 3600.0
PEN = {"customer": "ann", "items": {"pen": 2}}
PRESS = {"customer": "ann", "items": {"press": 1}}


class Shop:
    """A process of the service, over the files of a folder."""

    def __init__(self, folder: Path, pace: float, approval: float) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", str(SERVICE), f"sqlite:///{folder}/orders.db", str(port)],
            cwd=folder,
            env={**os.environ, "PACE": str(pace), "APPROVAL": str(approval)},
            stderr=subprocess.PIPE,
        )
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
        self.until(self.is_up, "the service did not come up")

    def is_up(self) -> bool:
        assert self.process.poll() is None, self.process.stderr.read().decode()
        try:
            return self.client.get("/approvals").status_code == 200
        except httpx.TransportError:
            return False

    def until(self, has_come: Callable[[], Any], otherwise: str) -> Any:
        """Look again and again, until something has come."""
        deadline = time.monotonic() + 20
        while not (found := has_come()):
            assert time.monotonic() < deadline, otherwise
            time.sleep(0.01)
        return found

    def post(self, path: str, **body: Any) -> Any:
        return self.client.post(path, json=body)

    def order(self, run_id: str) -> dict[str, Any]:
        return self.client.get(f"/orders/{run_id}").json()

    def waits_for(self, run_id: str, name: str) -> dict[str, Any]:
        """The wait for `name`, once the order is there."""
        return self.until(
            lambda: next((wait for wait in self.order(run_id)["waits"] if wait["for"] == name), None),
            f"{run_id} never waited for {name}: {self.order(run_id)}",
        )

    def ended(self, run_id: str) -> dict[str, Any]:
        """The order, once it has ended."""
        ends = {"finished", "failed", "cancelled", "blocked"}
        return self.until(
            lambda: told if (told := self.order(run_id))["status"] in ends else None,
            f"{run_id} did not end: {self.order(run_id)}",
        )

    def did(self, act: str) -> Any:
        """Wait until the world outside has done something."""
        return self.until(lambda: act in self.acts(), f"no {act}")

    def acts(self) -> list[str]:
        """What the world outside did, in order."""
        with closing(sqlite3.connect(self.folder / "outside.db")) as world:
            try:
                return [act for (act,) in world.execute("SELECT act FROM acts ORDER BY rowid")]
            except sqlite3.OperationalError:  # nothing yet
                return []

    def pay(self, run_id: str, event: str = "e-1", *, paid: bool = True) -> Any:
        return self.post("/webhooks/payment", event=event, order=run_id, payment="p-1", paid=paid).json()["outcome"]

    def end(self, how: signal.Signals) -> int:
        self.client.close()
        self.process.send_signal(how)
        code = self.process.wait(30)
        self.process.stderr.close()
        return code


@pytest.fixture
def open_shop(tmp_path: Path) -> Iterator[Callable[..., Shop]]:
    shops: list[Shop] = []

    def begin(pace: float = 0.01, approval: float = DAYS) -> Shop:
        shops.append(Shop(tmp_path, pace, approval))
        return shops[-1]

    yield begin
    for shop in shops:
        if shop.process.poll() is None:
            shop.end(signal.SIGKILL)


def test_a_large_order_is_paid_approved_and_shipped(open_shop):
    shop = open_shop()
    assert 202 == shop.post("/orders/o-1", **PRESS).status_code
    shop.waits_for("o-1", "payment")
    assert "taken" == shop.pay("o-1")
    asked = shop.waits_for("o-1", "approval")
    assert {"question": "ship this order?", "customer": "ann", "total": "1900.00"} == asked["prompt"]
    assert ["o-1"] == [question["order"] for question in shop.client.get("/approvals").json()]
    assert {"outcome": "taken"} == shop.post("/orders/o-1/approval", approved=True, by="bea").json()
    order = shop.ended("o-1")
    assert ("finished", "1900.00", "bea") == (
        order["status"],
        order["receipt"]["total"],
        order["receipt"]["approved_by"],
    )
    assert ["reserve", "charge", "ship"] == shop.acts()
    assert [] == shop.client.get("/approvals").json()


def test_a_small_order_needs_nobodys_approval_and_a_webhook_may_come_early_and_twice(open_shop):
    shop = open_shop()
    shop.post("/orders/o-1", **PEN)
    assert {shop.pay("o-1"), shop.pay("o-1")} in ({"taken", "duplicate"}, {"kept", "duplicate"})
    order = shop.ended("o-1")
    assert ("finished", "3.00", "nobody had to") == (
        order["status"],
        order["receipt"]["total"],
        order["receipt"]["approved_by"],
    )
    assert ["reserve", "charge", "ship"] == shop.acts()


def test_what_makes_no_sense_is_refused(open_shop):
    shop = open_shop()
    assert 422 == shop.post("/orders/o-1", customer="ann", items={"elephant": 1}).status_code
    assert 422 == shop.post("/orders/o-1", customer="ann").status_code
    assert 404 == shop.client.get("/orders/o-1").status_code
    assert 404 == shop.post("/webhooks/payment", event="e", order="o-1", payment="p", paid=True).status_code
    shop.post("/orders/o-1", **PEN)
    assert [202, 409] == [
        shop.post("/orders/o-1", **PEN).status_code,
        shop.post("/orders/o-1", **PRESS).status_code,
    ]
    shop.waits_for("o-1", "payment")
    assert 409 == shop.post("/orders/o-1/approval", approved=True, by="bea").status_code  # nobody asked
    shop.pay("o-1")
    shop.ended("o-1")
    assert 409 == shop.post("/webhooks/payment", event="e-2", order="o-1", payment="p", paid=True).status_code


def test_a_rejected_order_gives_everything_back(open_shop):
    shop = open_shop()
    shop.post("/orders/o-1", **PRESS)
    shop.pay("o-1")
    shop.waits_for("o-1", "approval")
    shop.post("/orders/o-1/approval", approved=False, by="bea", note="out of stock")
    order = shop.ended("o-1")
    assert ("failed", "bea said no: out of stock") == (order["status"], order["why"])
    assert ["reserve", "charge", "refund", "release"] == shop.acts()


def test_an_order_that_nobody_approves_in_time_gives_everything_back(open_shop):
    shop = open_shop(approval=0.2)
    shop.post("/orders/o-1", **PRESS)
    shop.pay("o-1")
    order = shop.ended("o-1")
    assert ("failed", "nobody approved it in time") == (order["status"], order["why"])
    assert ["reserve", "charge", "refund", "release"] == shop.acts()


@pytest.mark.parametrize("where", ["payment", "approval"])
def test_an_order_that_is_cancelled_while_it_waits_gives_everything_back(open_shop, where):
    shop = open_shop()
    shop.post("/orders/o-1", **PRESS)
    if where == "approval":
        shop.pay("o-1")
    shop.waits_for("o-1", where)
    shop.post("/orders/o-1/cancel")
    shop.did("release")
    order = shop.ended("o-1")
    assert ("cancelled", "by request") == (order["status"], order["why"])
    assert ["reserve", "charge", "refund", "release"] == shop.acts()


def test_a_service_that_is_killed_while_the_bank_answers_charges_once(open_shop):
    first = open_shop(pace=1.0)
    first.post("/orders/o-1", **PRESS)
    first.did("charge")
    assert -signal.SIGKILL == first.end(signal.SIGKILL)
    second = open_shop()
    second.waits_for("o-1", "payment")
    assert ["reserve", "charge"] == second.acts()
    second.pay("o-1")
    second.waits_for("o-1", "approval")
    assert -signal.SIGKILL == second.end(signal.SIGKILL)
    third = open_shop()
    assert {"outcome": "taken"} == third.post("/orders/o-1/approval", approved=True, by="bea").json()
    assert "finished" == third.ended("o-1")["status"]
    assert ["reserve", "charge", "ship"] == third.acts()


def test_a_service_that_is_killed_while_it_gives_back_goes_on_giving_back(open_shop):
    first = open_shop(pace=0.5)
    first.post("/orders/o-1", **PRESS)
    first.pay("o-1")
    first.waits_for("o-1", "approval")
    first.post("/orders/o-1/approval", approved=False, by="bea")
    first.did("refund")
    assert -signal.SIGKILL == first.end(signal.SIGKILL)
    assert ["reserve", "charge", "refund"] == first.acts()
    second = open_shop()
    order = second.ended("o-1")
    assert "failed" == order["status"]
    assert "bea said no" in order["why"]
    assert ["reserve", "charge", "refund", "release"] == second.acts()


def test_an_order_that_is_cancelled_while_its_payment_is_on_the_way_releases_the_stock(open_shop):
    shop = open_shop(pace=1.0)
    shop.post("/orders/o-1", **PRESS)
    shop.did("charge")
    assert {"outcome": "requested"} == shop.post("/orders/o-1/cancel").json()
    assert "cancelled" == shop.ended("o-1")["status"]
    assert ["reserve", "charge", "release"] == shop.acts()
