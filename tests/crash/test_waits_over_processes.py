"""Workflows that wait, over real processes: the one that booked is gone, another one is told, a third goes on.

The processes call functions of this file.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from processes import Log as Lines
from processes import calls_of, die, say

from milepost import Engine, RunSuspended, current, parallel, step, workflow
from milepost.errors import MilepostError
from milepost.stores.url import open_store


@dataclass
class Payment:
    amount: int
    by: str = "card"


def noted(log: str, then: Any = None) -> Any:
    def do(name: str) -> str:
        Lines(log).add(current())
        if then is not None:
            then()
        return name

    return do


def trip(log: str, dying: str = "") -> Any:
    """Book, wait for the payment, then ask two people at once; a process dies in the step called `dying`."""

    @workflow("trip")
    def made():
        def call(name: str) -> Any:
            return step(name).python(noted(log, die if name == dying else None), args=(name,))

        seat = yield from call("book")
        paid = yield from step("pay").wait_for("payment", payload=Payment)
        yield from call("confirm")
        both = yield from parallel("ask", step("anna").wait_for("anna"), step("ben").wait_for("ben"))
        return [seat, paid.payload.amount, *(told.output.payload for told in both)]

    return made


# -- in the processes --------------------------------------------------------------------------------------------


def run(url: str, log: str, dying: str, verb: str) -> None:
    flow = trip(log, dying)
    with open_store(url) as store:
        try:
            told = flow.run(store=store, run_id="r") if verb == "run" else flow.resume(store, "r")
        except RunSuspended as waiting:
            say("waits", sorted(wait.wait_id for wait in waiting.waiting_for))
        except MilepostError as exc:
            say(type(exc).__name__)
        else:
            say("done", told)


def send(url: str, name: str, payload: Any) -> None:
    with open_store(url) as store:
        say(Engine(store).signal("r", name, Payment(**payload) if isinstance(payload, dict) else payload))


def work(url: str, log: str) -> None:
    with open_store(url) as store:
        asyncio.run(Engine(store, flows=[trip(log)]).worker().arun(until_idle=True))
        say(store.get_run("r").info.status)


# -- the tests -------------------------------------------------------------------------------------------------


def counts(log: str) -> dict[str, int]:
    names = [call.node_id for call in calls_of(log, "r")]
    return {name: names.count(name) for name in names}


def test_each_process_does_its_part_of_a_run_that_waits(url: str, log: str, forks: Any):
    assert [["waits", ["pay#1"]]] == forks.call(run, url, log, "", "run").told
    assert [["waits", ["pay#1"]]] == forks.call(run, url, log, "", "resume").told
    assert [["taken"]] == forks.call(send, url, "payment", {"amount": 7}).told
    assert [["waits", ["ask/anna#1", "ask/ben#1"]]] == forks.call(run, url, log, "", "resume").told
    assert [["taken"]] == forks.call(send, url, "ben", "yes").told
    assert [["waiting"]] == forks.call(work, url, log).told
    assert [["taken"]] == forks.call(send, url, "anna", "no").told
    assert [["finished"]] == forks.call(work, url, log).told
    assert [["done", ["book", 7, "no", "yes"]]] == forks.call(run, url, log, "", "resume").told
    assert {"book": 1, "confirm": 1} == counts(log)


@pytest.mark.parametrize("dying", ["book", "confirm"])
def test_a_process_that_is_killed_beside_a_wait_costs_one_call(url: str, log: str, forks: Any, dying: str):
    first = forks.call(run, url, log, dying, "run")
    assert (dying == "book") == first.was_killed
    if dying == "book":
        assert [["waits", ["pay#1"]]] == forks.call(run, url, log, "", "resume").told
    forks.call(send, url, "payment", {"amount": 7})
    second = forks.call(run, url, log, dying if dying == "confirm" else "", "resume")
    assert (dying == "confirm") == second.was_killed
    if dying == "confirm":
        assert [["waits", ["ask/anna#1", "ask/ben#1"]]] == forks.call(run, url, log, "", "resume").told
    for name in ("anna", "ben"):
        forks.call(send, url, name, name)
    assert [["done", ["book", 7, "anna", "ben"]]] == forks.call(run, url, log, "", "resume").told
    assert {"book": 1, "confirm": 1} | {dying: 2} == counts(log)


def test_signals_that_come_while_nobody_lives_are_all_there(url: str, log: str, forks: Any):
    assert forks.call(run, url, log, "book", "run").was_killed
    for name, payload in (("ben", "b"), ("anna", "a"), ("payment", {"amount": 1})):
        assert [["kept"]] == forks.call(send, url, name, payload).told
    assert [["done", ["book", 1, "a", "b"]]] == forks.call(run, url, log, "", "resume").told
    assert Path(log).exists()
