"""Runs that are started by name: their starts and first owners die at every effect, and real processes lack the code."""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from milepost import END, Engine, Graph, MemoryStore, SQLiteStore, Steps, Store, step, workflow
from milepost.executor.checks import ResumeRequest
from milepost.executor.resume import resume_claimed
from milepost.executor.start import enqueue_by_name
from milepost.model.ids import new_nonce
from milepost.model.record import OWNER
from milepost.options import merge_options
from milepost.stores.url import open_store
from milepost.testing import FakeClock, Stepper
from milepost.verbs import Job, flow_of

LEASE = 30.0
ADDED = itertools.count()
MOMENTS = [(number // 2, bool(number % 2)) for number in range(200)]
"""Before and after each effect; no process here comes to the last."""


@dataclass
class Order:
    id: str
    number: int = field(default_factory=lambda: next(ADDED))
    seen: list[int] = field(default_factory=list)


@dataclass
class Narrow:
    id: int


def note(order: Order) -> Order:
    return Order(order.id, order.number, [*order.seen, order.number])


def graph_of(state: type = Order) -> Any:
    graph = Graph(state).add_node("a", note).add_node("b", note).add_edge("a", "b").add_edge("b", END)
    return graph.set_entry("a").compile("orders")


def workflow_of(kind: type = Order) -> Any:
    @workflow("orders")
    def orders(order: kind) -> Steps[kind]:
        first = yield from step("a").python(note, args=(order,))
        return (yield from step("b").python(note, args=(Order(first.id, order.number, first.seen),)))

    return orders


MAKE: dict[str, Callable[..., Any]] = {"graph": graph_of, "workflow": workflow_of}
GIVEN: dict[str, Any] = {"graph": {"id": "o-1"}, "workflow": {"order": {"id": "o-1"}}}
fronts = pytest.mark.parametrize("front", MAKE)


def process(flow: Any, store: Store, how: str) -> Stepper[Any]:
    """A process that goes on with the run, as a worker or a resume does."""
    job = Job(flow_of(flow), store, "r", {"lease": LEASE}, {"clock": store.clock}, ResumeRequest())
    if how == "resume":
        return Stepper(job.routine(None), clock=store.clock)  # type: ignore[arg-type]
    ((token, _),) = store.claim_due(["orders"], 1, lease=LEASE)
    stepper = Stepper(resume_claimed(job.run, token), clock=store.clock)  # type: ignore[arg-type]
    stepper.tokens.append(token)
    return stepper


def die(dying: Stepper[Any], moment: int, *, is_after: bool) -> bool:
    """Let a process die at an effect; return whether it came so far."""
    for _ in range(moment):
        if dying.pending is not None:
            dying.step()
    if dying.pending is None:
        return False
    dying.perform() if is_after else dying.kill()
    return True


def left_by(dying: Stepper[Any], store: Store) -> None:
    """End the leases of a process that has died."""
    for token in dying.tokens:
        if isinstance(store, MemoryStore):
            store.abandon(token)
    store.clock.advance(LEASE + 1)  # type: ignore[attr-defined]


def opened(kind: str, path: Path, name: str) -> Store:
    if kind == "memory":
        return MemoryStore(clock=FakeClock())
    return SQLiteStore(path / f"{name}.db", clock=FakeClock(), durability="normal")


@fronts
@pytest.mark.parametrize("how", ["worker", "resume"])
@pytest.mark.parametrize("kind", ["memory", pytest.param("sqlite", marks=pytest.mark.wide)])
def test_a_first_owner_that_dies_at_any_effect_leaves_one_input(tmp_path, front, how, kind):
    flow, died = MAKE[front](), 0
    for moment, is_after in MOMENTS:
        with opened(kind, tmp_path, f"{moment}-{is_after}") as store:
            Engine(store, clock=store.clock).start("orders", GIVEN[front], run_id="r")
            dying = process(flow, store, how)
            if not die(dying, moment, is_after=is_after):
                break
            died += 1
            left_by(dying, store)
            row = store.get_run("r")
            if row.info.status != "finished":
                process(flow, store, "resume" if row.info.status == "interrupted" else how).run()
            handle = Engine(store, flows=[flow], clock=store.clock).handle("r")
            order, where = handle.result(0), f"effect {moment}, after: {is_after}"
            owners = [owner for owner in store.read("r", kinds=(OWNER,)) if "fingerprint" in owner.fields()]
            assert (1, [order.number] * 2) == (len(owners), order.seen), where
            assert (True, ()) == (store.verify("r").ok, handle.info().missed), where
    assert died > 10


@fronts
def test_a_first_owner_that_dies_over_a_wrong_input_leaves_it_to_be_blocked(tmp_path, front):
    narrow, flow = MAKE[front](Narrow), MAKE[front]()
    for moment, is_after in MOMENTS:
        with opened("memory", tmp_path, "") as store:
            engine = Engine(store, flows=[flow], clock=store.clock)
            engine_far = Engine(store, clock=store.clock)
            engine_far.start("orders", GIVEN[front], run_id="r")
            dying = process(narrow, store, "worker")
            if not die(dying, moment, is_after=is_after):
                break
            left_by(dying, store)
            if store.get_run("r").info.status != "blocked":
                Engine(store, flows=[narrow], clock=store.clock).worker().run(until_idle=True)
            assert "input" == store.get_run("r").info.blocked_by, f"effect {moment}, after: {is_after}"
            engine_far.requeue("r")
            engine.worker().run(until_idle=True)
            assert "o-1" == engine.handle("r").result(0).id
    assert moment > 3


def test_a_start_that_dies_at_any_effect_may_be_repeated():
    for moment, is_after in MOMENTS[:2]:
        store = MemoryStore(clock=FakeClock())
        options = merge_options({"clock": store.clock}, {"if_exists": "return"})
        dying = Stepper(enqueue_by_name(store, "r", "orders", {"id": "o-1"}, options, new_nonce), clock=store.clock)
        assert die(dying, moment, is_after=is_after)
        assert is_after == bool(store.list_runs())
        Engine(store).start("orders", {"id": "o-1"}, run_id="r", if_exists="return")
        assert ["ready"] == [info.status for info in store.list_runs()]


# -- processes that do not have the code -----------------------------------------------------------------------

STARTS = """
import json, sys
from milepost import Engine
with Engine(sys.argv[1]) as engine:
    for front, given in json.loads(sys.argv[2]).items():
        engine.start("orders " + front, given, run_id=front, tags={"from": "elsewhere"})
"""
WAITS = """
import json, sys
from milepost import Engine
with Engine(sys.argv[1]) as engine:
    handles = [engine.handle(run_id) for run_id in ("graph", "workflow")]
    print(json.dumps([[handle.result(60, raw=True)["id"], handle.output("a", raw=True)["id"]] for handle in handles]))
"""


def elsewhere(code: str, *arguments: str) -> str:
    """Run code in a process that knows nothing of this file, and return what it prints."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(
    "url", ["sqlite", *(pytest.param(kind, marks=pytest.mark.wide) for kind in ("file", "postgres"))], indirect=True
)
def test_a_process_without_the_code_starts_runs_and_gets_their_results(url):
    with open_store(url) as store:
        elsewhere(STARTS, url, json.dumps(GIVEN))
        assert {"ready"} == {info.status for info in store.list_runs(tags={"from": "elsewhere"})}
        graph = Graph(Order).add_node("a", note).add_edge("a", END).set_entry("a").compile("orders graph")

        @workflow("orders workflow")
        def orders(order: Order) -> Steps[Order]:
            return (yield from step("a").python(note, args=(order,)))

        Engine(store, flows=[graph, orders]).worker().run(until_idle=True)
        assert [["o-1", "o-1"]] * 2 == json.loads(elsewhere(WAITS, url))
        assert all(store.verify(run_id).ok for run_id in GIVEN)
