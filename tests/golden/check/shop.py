"""Flows as they were and as they are, and runs of the former, for the reports in this folder."""

import contextlib
import os

from milepost import END, Engine, Graph, MemoryStore, Steps, step, workflow
from milepost.errors import RunSuspended
from milepost.testing import FakeClock


def price(order: dict) -> dict:
    return order


def approve(order: dict) -> dict:
    return order


def line(*nodes: str, name: str):
    graph = Graph(dict)
    for node, after in zip(nodes, (*nodes[1:], END), strict=True):
        graph.add_node(node, approve if "approve" in node else price).add_edge(node, after)
    return graph.set_entry(nodes[0]).compile(name)


def fetch(region: str) -> str:
    return region


@workflow("ingest")
def ingest_before(region: str) -> Steps[None]:
    yield step("fetch").python(fetch, args=(region,))
    yield step("release").wait_for("release")


@workflow("ingest")
def ingest(region: str) -> Steps[None]:
    home = os.environ["HOME"]
    if region != "eu":
        yield step("check").python(fetch, args=(home,))
    yield step("fetch").python(fetch, args=(region,))
    yield step("release").wait_for("release")


orders = line("price", "approve2", "ship", "bill", name="orders")


def engine() -> Engine:
    """The flows as they are, over a store with runs of those that were."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    before = line("price", "approve", "ship", name="orders")
    for run_id, stop in (("o-1", "price"), ("o-2", "approve"), ("o-3", "approve"), ("o-4", "price")):
        before.run({}, store=store, run_id=run_id, stop_after=[stop], full=True, clock=clock)
    line("a", name="old::100%").run({}, store=store, run_id="x-1", stop_before=["a"], full=True, clock=clock)
    for run_id, region in (("i-1", "eu"), ("i-2", "us|*<b>"), ("i-3", "asia")):
        with contextlib.suppress(RunSuspended):
            ingest_before.run(store=store, run_id=run_id, region=region, clock=clock)
    return Engine(store, flows=[orders, ingest], clock=clock)
