"""What type checkers must know of the verbs of flows and engines: read by mypy and pyright, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import assert_type

from milepost.engine import Engine
from milepost.events import Event, ResumePlan, RunResult
from milepost.graph import CompiledGraph, Graph
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
assert_type(orders.resume_from(store, "r1", "a", full=True), RunResult[Order])
assert_type(orders.retry(store, "r1"), Order)
assert_type(orders.retry(store, "r1", full=True), RunResult[Order])
assert_type(orders.stream(Order()), Iterator[Event])
assert_type(orders.aresume_stream(store, "r1"), AsyncIterator[Event])
assert_type(orders.plan_resume(store, "r1", "a"), ResumePlan)
assert_type(orders.bind(Order()), Bound[Order])

assert_type(engine.run(orders, Order()), Order)
assert_type(engine.run(orders.bind(Order()), full=True), RunResult[Order])
assert_type(engine.resume(orders, "r1"), Order)
assert_type(engine.resume(orders, "r1", full=True), RunResult[Order])
assert_type(engine.resume_from(orders, "r1", "a", rerun=True), Order)
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
