"""What type checkers must know of the verbs of flows and engines: read by mypy and pyright, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Literal, assert_type

from milepost import CheckpointData, MemoryCheckpointStore
from milepost.engine.engine import Engine
from milepost.engine.handle import RunHandle
from milepost.engine.worker import Worker
from milepost.events import Event
from milepost.graph.builder import CompiledGraph, Graph
from milepost.model.reports import ResumePlan, RunResult
from milepost.stores.memory import MemoryStore
from milepost.verbs import Bound


@dataclass
class Order:
    total: int = 0


orders: CompiledGraph[Order] = Graph(Order).compile("orders")
store = MemoryStore()
engine = Engine(store, flows=[orders], max_iterations=None)

assert_type(orders.run(Order()), Order)
assert_type(orders.run(Order(), store=store, full=True), RunResult[Order])
assert_type(orders.resume(store, "r1"), Order)
assert_type(orders.resume(store, "r1", full=True), RunResult[Order])
assert_type(orders.resume_from(store, "r1", "a", visit=2, rerun=True), Order)
assert_type(orders.run(Order(), store=store, run_id="r1", if_exists="continue"), Order)
assert_type(orders.fork_run(store, "r1", "a", 2, new_run_id="r2", state_override=lambda s: s, into=store), str)
assert_type(orders.resume_from(store, "r1", "a", full=True), RunResult[Order])
assert_type(orders.retry(store, "r1"), Order)
assert_type(orders.retry(store, "r1", full=True), RunResult[Order])
assert_type(orders.stream(Order()), Iterator[Event])
assert_type(orders.aresume_stream(store, "r1"), AsyncIterator[Event])
assert_type(orders.plan_resume(store, "r1", "a"), ResumePlan)
assert_type(orders.bind(Order()), Bound[Order, RunResult[Order]])
bound: Bound[Order] = orders.bind(Order())

assert_type(engine.run(orders, Order()), Order)
assert_type(engine.run(orders.bind(Order()), full=True), RunResult[Order])
assert_type(engine.resume(orders, "r1"), Order)
assert_type(engine.resume(orders, "r1", full=True), RunResult[Order])
assert_type(engine.resume_from(orders, "r1", "a", rerun=True), Order)
assert_type(engine.fork_run(orders, "r1", "a"), str)
assert_type(engine.resume_from(orders, "r1", "a", full=True), RunResult[Order])
assert_type(engine.retry(orders, "r1", max_iterations=None), Order)
assert_type(engine.retry(orders, "r1", full=True), RunResult[Order])
assert_type(engine.resume(orders.bind(Order()), "r1"), Order)
assert_type(engine.stream(orders, Order()), Iterator[Event])
assert_type(engine.plan_resume(orders, "r1"), ResumePlan)


async def awaited() -> None:
    assert_type(await orders.arun(Order()), Order)
    assert_type(await orders.aresume(store, "r1", full=True), RunResult[Order])
    assert_type(await engine.arun(orders, Order(), full=True), RunResult[Order])
    assert_type(await engine.aresume(orders, "r1"), Order)
    assert_type(await engine.aresume(orders, "r1", full=True), RunResult[Order])
    assert_type(await engine.aresume_from(orders, "r1", "a"), Order)
    assert_type(await engine.aresume_from(orders, "r1", "a", full=True), RunResult[Order])
    assert_type(await engine.aretry(orders, "r1"), Order)
    assert_type(await engine.aretry(orders, "r1", full=True), RunResult[Order])


class Mine:
    """A store as a user writes one."""

    def save(self, run_id: str, node_id: str, data: bytes) -> None: ...
    def load(self, run_id: str, node_id: str) -> bytes:
        return b""

    def list(self, run_id: str) -> list[object]:
        return []

    def delete(self, run_id: str, node_id: str) -> None: ...
    def delete_run(self, run_id: str) -> None: ...
    def close(self) -> None: ...


class MyPoints:
    async def save(self, workflow_id: str, data: CheckpointData) -> None: ...
    async def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData | None: ...
    async def load_latest(self, workflow_id: str) -> CheckpointData | None: ...
    async def clear(self, workflow_id: str) -> None: ...
    async def list_checkpoints(self, workflow_id: str) -> list[str]:
        return []


assert_type(orders.run(Order(), store=Mine()), Order)
assert_type(orders.resume(MyPoints(), "r1"), Order)
assert_type(Engine(Mine()).run(orders, Order()), Order)
assert_type(orders.run(Order(), store=MemoryCheckpointStore()), Order)

assert_type(engine.start(orders, Order(), run_id="r1"), RunHandle[Order])
assert_type(engine.start(orders.bind(Order())), RunHandle[Order])
assert_type(engine.handle("r1", orders), RunHandle[Order])
assert_type(engine.handle("r1", orders).result(timeout=1), Order)
assert_type(engine.handle("r1", orders).state("a"), Order)
assert_type(engine.cancel("r1"), Literal["cancelled", "requested", "ended"])
assert_type(orders.signal(store, "r1", "go", {"by": 1}), Literal["taken", "kept", "duplicate"])


async def watched() -> None:
    handle = await engine.astart(orders, Order())
    assert_type(await handle.aresult(), Order)
    async for event in handle.aevents():
        assert_type(event, Event)
    async with engine.worker() as worker:
        assert_type(worker, Worker)
