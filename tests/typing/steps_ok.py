"""What type checkers must know of workflows of steps: read by mypy and pyright, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, assert_type

from milepost import (
    Bound,
    BranchResult,
    Context,
    Engine,
    Event,
    Graph,
    ParallelResult,
    Reply,
    Retry,
    RunHandle,
    RunResult,
    SkipMarker,
    StepResult,
    Steps,
    WorkflowContext,
    WorkflowEngine,
    WorkflowResult,
    branch,
    current,
    parallel,
    step,
    workflow,
)
from milepost.model.results import SubWorkflowInvocationResult
from milepost.stores.memory import MemoryStore
from milepost.verbs import Verbs
from milepost.workflows.steps import Step


@dataclass
class Receipt:
    number: str
    cents: int = 0


@dataclass
class Clients:
    url: str


def nothing() -> None: ...
async def nothing_later() -> None: ...
def charge(cents: int, currency: str = "EUR") -> Receipt:
    return Receipt("r-1", cents)


async def charge_later(cents: int, currency: str = "EUR") -> Receipt:
    return Receipt("r-1", cents)


def ship(address: str, *, express: bool) -> list[str]:
    return [address]


async def ship_later(address: str, *, express: bool) -> list[str]:
    return [address]


def add(*numbers: int) -> int:
    return sum(numbers)


def rate(of: float, to: int | None) -> float:
    return of


def find(number: str) -> Receipt | None:
    return None


def anything(given: Any) -> Any:
    return given


class Bank:
    def __init__(self, url: str, retries: int = 3) -> None: ...
    def pay(self, cents: int) -> Receipt:
        return Receipt("r-1", cents)

    async def pay_later(self, cents: int) -> Receipt:
        return Receipt("r-1", cents)

    @classmethod
    def of(cls, url: str) -> Bank:
        return cls(url)

    @staticmethod
    def fee(cents: int) -> float:
        return cents / 100

    def __call__(self, cents: int) -> bytes:
        return b""


class AsyncBank:
    async def __call__(self, cents: int) -> bytes:
        return b""


bank = Bank("https://bank")


def is_large(ctx: WorkflowContext[Clients]) -> bool:
    return len(ctx.deps.url) > 3


async def is_large_later(ctx: WorkflowContext[Any]) -> bool:
    return True


# -- what a step's function returns, sync or async, is what the step gives ----------------------------


def functions(numbers: tuple[int, ...]) -> Steps[None]:
    assert_type((yield from step("a").python(nothing)), None)
    assert_type((yield from step("a").python(nothing, args=())), None)
    assert_type((yield from step("a").python(nothing_later)), None)
    assert_type((yield from step("a").python(charge, args=(100,))), Receipt)
    assert_type((yield from step("a").python(charge, (100, "USD"))), Receipt)
    assert_type((yield from step("a").python(charge_later, args=(100,))), Receipt)
    assert_type((yield from step("a").python(charge_later, args=(100, "USD"))), Receipt)
    assert_type((yield from step("a").python(add, args=(1, 2, 3))), int)
    assert_type((yield from step("a").python(add, args=numbers)), int)
    assert_type((yield from step("a").python(rate, args=(1, None))), float)
    assert_type((yield from step("a").python(find, args=("r-1",))), Receipt | None)
    assert_type((yield from step("a").python(ship, args=("Rome",), kwargs={"express": True})), list[str])
    assert_type((yield from step("a").python(ship_later, kwargs={"address": "Rome", "express": True})), list[str])
    assert_type((yield from step("a").python(charge, args=(100,), kwargs=None)), Receipt)
    assert_type((yield from step("a").python(bank.pay, args=(100,))), Receipt)
    assert_type((yield from step("a").python(bank.pay_later, args=(100,))), Receipt)
    assert_type((yield from step("a").python(Bank.of, args=("https://bank",))), Bank)
    assert_type((yield from step("a").python(Bank.fee, args=(100,))), float)
    assert_type((yield from step("a").python(bank, args=(100,))), bytes)
    assert_type((yield from step("a").python(AsyncBank(), args=(100,))), bytes)
    assert_type((yield from step("a").python(Bank, args=("https://bank",))), Bank)
    assert_type((yield from step("a").python(Receipt, args=("r-1", 100))), Receipt)
    assert_type((yield from step("a").python(len, args=("abc",))), int)
    assert_type((yield from step("a").python(str, args=(1,))), str)
    assert_type((yield from step("a").python(lambda: 1)), int)
    assert_type((yield from step("a").python(lambda cents, by: cents * by, args=(100, 2))), int)
    assert_type((yield from step("a").python(partial(charge, 100))), Receipt)
    assert_type((yield from step("a").python(partial(charge, 100), args=("USD",))), Receipt)
    assert_type((yield from step("a").python(partial(charge_later, currency="USD"), args=(100,))), Receipt)
    assert_type((yield from step("a").python(anything, args=(1,))), Any)
    assert_type((yield step("a").python(charge, args=(100,))), Any)


async def awaited() -> None:
    assert_type(await step("a").python(nothing), None)
    assert_type(await step("a").python(charge, args=(100,)), Receipt)
    assert_type(await step("a").python(charge_later, args=(100,)), Receipt)
    assert_type(await step("a").python(charge, args=(100,)).when(is_large), Receipt | SkipMarker)
    assert_type(await step("a").as_result().python(charge, args=(100,)), StepResult[Receipt | None])
    assert_type(await step("a").map(charge_later, [1, 2]), list[Receipt])
    assert_type(await step("a").wait_for("go", payload=int), Reply[int])


# -- modifiers: before or after the kind, the same type ------------------------------------------------


def skipped() -> Steps[None]:
    assert_type((yield from step("a").when(is_large).python(charge, args=(1,))), Receipt | SkipMarker)
    assert_type((yield from step("a").python(charge, args=(1,)).when(is_large_later)), Receipt | SkipMarker)
    assert_type((yield from step("a").when(lambda ctx: True).python(nothing_later)), SkipMarker | None)
    assert_type((yield from step("a").skip_on_error().python(charge_later, args=(1,))), Receipt | SkipMarker)
    assert_type((yield from step("a").python(charge_later, args=(1,)).skip_on_error()), Receipt | SkipMarker)
    assert_type((yield from step("a").when(is_large).skip_on_error().python(add)), int | SkipMarker)
    assert_type((yield from step("a").when(is_large).python(add).skip_on_error()), int | SkipMarker)
    assert_type((yield from step("a").when(is_large).map(charge, [1])), list[Receipt] | SkipMarker)
    assert_type((yield from parallel("a").when(is_large)), ParallelResult | SkipMarker)
    assert_type((yield from step("a").when(is_large).sleep(1)), Reply[None] | SkipMarker)
    receipt = yield from step("a").python(charge, args=(1,)).when(is_large)
    if not isinstance(receipt, SkipMarker):
        assert_type(receipt, Receipt)


Skippable = Receipt | SkipMarker | None
Inner = SubWorkflowInvocationResult[Receipt] | None


def told() -> Steps[None]:
    assert_type((yield from step("a").as_result().python(nothing)), StepResult[None])
    assert_type((yield from step("a").as_result().python(charge, args=(1,))), StepResult[Receipt | None])
    assert_type((yield from step("a").as_result().python(charge_later, args=(1, "USD"))), StepResult[Receipt | None])
    assert_type(
        (yield from step("a").as_result().python(ship, ("Rome",), kwargs={"express": True})),
        StepResult[list[str] | None],
    )
    assert_type((yield from step("a").python(charge_later, args=(1,)).as_result()), StepResult[Receipt | None])
    assert_type(
        (yield from step("a").as_result().when(is_large).python(charge, args=(1,))),
        StepResult[Receipt | SkipMarker | None],
    )
    assert_type(
        (yield from step("a").when(is_large).as_result().python(charge, args=(1,))),
        StepResult[Receipt | SkipMarker | None],
    )
    assert_type(
        (yield from step("a").python(charge, args=(1,)).as_result().when(is_large)),
        StepResult[Receipt | SkipMarker | None],
    )
    assert_type(
        (yield from step("a").python(charge, args=(1,)).when(is_large).as_result()),
        StepResult[Receipt | SkipMarker | None],
    )
    assert_type((yield from step("a").as_result().python(add).skip_on_error()), StepResult[int | SkipMarker | None])
    assert_type((yield from step("a").as_result().python(add).on_error(again)), StepResult[int | Receipt | None])
    assert_type(
        (yield from step("a").as_result().on_error(again).skip_on_error().python(add)),
        StepResult[int | Receipt | SkipMarker | None],
    )
    assert_type((yield from step("a").as_result().timeout(1).map(charge, [1])), StepResult[list[Receipt] | None])
    assert_type(
        (yield from step("a").as_result().subworkflow(order, {"cents": 1})),
        StepResult[SubWorkflowInvocationResult[Receipt] | None],
    )
    assert_type(
        (yield from step("a").as_result().branch((is_large, step("b").python(add)))), StepResult[BranchResult | None]
    )
    assert_type((yield from step("a").as_result().parallel([])), StepResult[ParallelResult | None])
    assert_type(
        (yield from step("a").as_result().wait_for("go", timeout=1, payload=int)), StepResult[Reply[Any] | None]
    )
    assert_type((yield from step("a").as_result().sleep(1)), StepResult[Reply[None] | None])
    assert_type((yield from step("a").as_result().sleep_until(datetime.now(UTC))), StepResult[Reply[None] | None])


def undo(ctx: WorkflowContext[Clients], receipt: Receipt) -> None: ...


def unchanged() -> Steps[None]:
    before = step("a").retry(3, backoff=1).timeout(timedelta(seconds=1)).with_rollback(undo, retry=Retry()).checkpoint()
    assert_type((yield from before.compare_args(False).must_succeed().python(charge, args=(1,))), Receipt)
    after = step("a").python(charge, args=(1,)).retry(Retry(max_attempts=3)).timeout(1).with_rollback(undo).checkpoint()
    assert_type((yield from after.compare_args(False).must_succeed()), Receipt)


def again(ctx: WorkflowContext[Clients], failed: StepResult) -> Step[Receipt]:
    return step("again").python(charge, args=(1,))


async def again_later(ctx: WorkflowContext[Any], failed: StepResult) -> Step[Receipt]:
    return step("again").python(charge_later, args=(1,))


def recovered() -> Steps[None]:
    assert_type(
        (yield from step("a").python(charge, args=(1,)).on_error(lambda ctx, failed: step("b").python(find, ("r-1",)))),
        Receipt | None,
    )
    assert_type(
        (yield from step("a").on_error(lambda ctx, failed: step("b").python(find, ("r",))).python(charge, args=(1,))),
        Receipt | None,
    )
    assert_type((yield from step("a").python(charge, args=(1,)).on_error(again)), Receipt)
    assert_type((yield from step("a").python(charge, args=(1,)).on_error(again_later)), Receipt)
    assert_type((yield from step("a").on_error(again_later).when(is_large).python(add)), int | Receipt | SkipMarker)


def chosen(is_domestic: bool) -> Step[Receipt | SkipMarker]:
    """A step that may give less than it is declared to give."""
    paid = step("a").python(charge, args=(1,))
    return paid if is_domestic else paid.when(is_large)


# -- the other kinds -----------------------------------------------------------------------------------


def kinds(orders: list[int]) -> Steps[None]:
    assert_type((yield from step("a").map(charge, orders)), list[Receipt])
    assert_type((yield from step("a").map(charge_later, orders, key=str, max_parallel=2)), list[Receipt])
    assert_type((yield from step("a").map(lambda cents: cents * 2, orders, key=lambda cents: str(cents))), list[int])
    assert_type((yield from step("a").map(Bank, ["https://bank"])), list[Bank])
    assert_type((yield from step("a").map(nothing_of, (1, 2))), list[None])

    assert_type((yield from branch("a", (is_large, step("b").python(add)))), BranchResult)
    assert_type(
        (
            yield from step("a").branch(
                (is_large_later, step("b").python(add)), (lambda ctx: True, step("c").python(charge, args=(1,)))
            )
        ),
        BranchResult,
    )
    assert_type((yield from parallel("a", step("b").python(add), step("c").sleep(1), max_parallel=1)), ParallelResult)
    assert_type((yield from step("a").parallel([step("b").python(charge, args=(n,)) for n in orders])), ParallelResult)
    both = yield from parallel("a", step("b").python(add), step("c").python(nothing))
    assert_type(both[0], StepResult[Any])
    assert_type([result.success for result in both], list[bool])

    assert_type((yield from step("a").wait_for("go")), Reply[Any])
    assert_type((yield from step("a").wait_for("go", timeout=timedelta(days=1), prompt={"cents": 1})), Reply[Any])
    assert_type((yield from step("a").wait_for("go", payload=Receipt, early=False)), Reply[Receipt])
    assert_type((yield from step("a").wait_for("go", payload=list[Receipt])), Reply[list[Receipt]])
    assert_type((yield from step("a").wait_for("go", payload=Receipt | int)), Reply[Any])
    answer = yield from step("a").wait_for("go", payload=int)
    assert_type(answer.payload, int | None)
    assert_type(answer.timed_out, bool)
    assert_type((yield from step("a").sleep(timedelta(days=30))), Reply[None])
    assert_type((yield from step("a").sleep_until(datetime.now(UTC))), Reply[None])

    assert_type((yield from step("a").subworkflow(order, {"cents": 1})), SubWorkflowInvocationResult[Receipt])
    assert_type((yield from step("a").subworkflow(order.bind(1))), SubWorkflowInvocationResult[Receipt])
    assert_type((yield from step("a").subworkflow(order_later, {"cents": 1})), SubWorkflowInvocationResult[str])
    assert_type((yield from step("a").subworkflow(graph, Receipt("r-1"))), SubWorkflowInvocationResult[Receipt])
    assert_type((yield from step("a").subworkflow(graph.bind(Receipt("r-1")))), SubWorkflowInvocationResult[Receipt])
    assert_type((yield from step("a").when(is_large).subworkflow(plain)), SubWorkflowInvocationResult[int] | SkipMarker)
    inner = yield from step("a").subworkflow(order, {"cents": 1})
    assert_type(inner.final_output, Receipt)


async def nothing_of(item: int) -> None: ...


# -- workflows: their inputs, without the context, and what they return ---------------------------------


@workflow("order")
def order(ctx: WorkflowContext[Clients], cents: int, currency: str = "EUR") -> Steps[Receipt]:
    assert_type(ctx.deps, Clients)
    assert_type(current(Clients), Context[Clients])
    assert_type(current(Clients).deps.url, str)
    assert_type(ctx.version, int)
    assert_type(ctx.now(), datetime)
    receipt = yield from step("charge").python(charge, args=(cents, currency))
    yield step("told").python(nothing)
    return receipt


@workflow("order later", "Pays and waits.", version=2, types=[Receipt])
async def order_later(ctx: WorkflowContext[Any], cents: int, *, address: str = "") -> str:
    receipt = await step("charge").python(charge_later, args=(cents,))
    return receipt.number


@workflow("plain")
def plain(numbers: dict[str, Any] | None = None) -> Steps[int]:
    return (yield from step("add").python(add))


@workflow("any")
def any_input(ctx: WorkflowContext[Any], given: dict[str, Any], of: object, then: Any = None) -> Steps[list[Any]]:
    yield step("add").python(add)
    return []


@workflow("no inputs")
async def no_inputs() -> None: ...


assert_type(order(1), Receipt)
assert_type(order(cents=1, currency="USD"), Receipt)
called: Coroutine[Any, Any, str] = order_later(1, address="Rome")
assert_type(plain(), int)

assert_type(order.bind(1), Bound[Receipt, WorkflowResult[Receipt]])
assert_type(order.bind(cents=1, currency="USD"), Bound[Receipt, WorkflowResult[Receipt]])
assert_type(order_later.bind(1, address="Rome"), Bound[str, WorkflowResult[str]])
assert_type(plain.bind(numbers={}), Bound[int, WorkflowResult[int]])
assert_type(any_input.bind({}, 1, then=2), Bound[list[Any], WorkflowResult[list[Any]]])
assert_type(no_inputs.bind(), Bound[None, WorkflowResult[None]])

assert_type(order.run(1, store=MemoryStore()), Receipt)
assert_type(order.run(1, full=True), WorkflowResult[Receipt])
assert_type(order.run(inputs={"cents": 1}), Receipt)
assert_type(order.run(cents=1, store=MemoryStore(), run_id="r1"), Receipt)
assert_type(order.run(cents=1, full=True), WorkflowResult[Receipt])
assert_type(order.resume(MemoryStore(), "r1"), Receipt)
assert_type(order.resume(MemoryStore(), "r1", full=True), WorkflowResult[Receipt])
assert_type(order.retry(MemoryStore(), "r1", full=True), WorkflowResult[Receipt])
assert_type(order.resume(MemoryStore(), "r1", total=1), Receipt)
assert_type(order.retry(MemoryStore(), "r1", inputs={"total": 1}, full=True), WorkflowResult[Receipt])
assert_type(order.stream(cents=1), Iterator[Event])


# -- engines -------------------------------------------------------------------------------------------

graph = Graph(Receipt).add_node("find", lambda receipt: receipt).set_entry("find").compile("receipts")
engine = Engine(MemoryStore(), flows=[order, order_later, plain, graph], deps=Clients("https://bank"))


def bound_order() -> Bound[Receipt]:
    """The result of the flow is not told by the annotation, so it is Any."""
    return order.bind(1) if engine.flows else graph.bind(Receipt("r-1"))


assert_type(engine.run(order.bind(1)), Receipt)
assert_type(engine.run(order.bind(1), full=True), WorkflowResult[Receipt])
assert_type(engine.run(order, 1), Receipt)
assert_type(engine.run(order, 1, full=True), WorkflowResult[Receipt])
assert_type(engine.run(order, cents=1), Receipt)
assert_type(engine.run(order, inputs={"cents": 1}, run_id="r1", max_iterations=9), Receipt)
assert_type(engine.run(order, cents=1, full=True), WorkflowResult[Receipt])
assert_type(engine.run(plain), int)
assert_type(engine.run(graph, Receipt("r-1"), full=True), RunResult[Receipt])
assert_type(engine.run(graph.bind(Receipt("r-1")), full=True), RunResult[Receipt])
assert_type(engine.run(bound_order()), Receipt)
assert_type(engine.run(bound_order(), full=True), Any)
assert_type(engine.resume(order, "r1"), Receipt)
assert_type(engine.resume(order, "r1", full=True), WorkflowResult[Receipt])
assert_type(engine.resume(order.bind(1), "r1"), Receipt)
assert_type(engine.resume(order.bind(1), "r1", full=True), WorkflowResult[Receipt])
assert_type(engine.retry(order, "r1", full=True), WorkflowResult[Receipt])
assert_type(engine.resume_from(order, "r1", "charge", full=True), WorkflowResult[Receipt])
assert_type(engine.stream(order, cents=1), Iterator[Event])
assert_type(engine.astream(order.bind(1)), AsyncIterator[Event])
assert_type(engine.start(order, 1), RunHandle[Receipt])
assert_type(engine.start(order, cents=1), RunHandle[Receipt])
assert_type(engine.start(order.bind(1), run_id="r1", at=datetime.now(UTC)), RunHandle[Receipt])
assert_type(engine.start(order.bind(1)).result(timeout=1), Receipt)
assert_type(engine.handle("r1", order_later), RunHandle[str])
flow: Verbs[Receipt] = order


async def engines() -> None:
    assert_type(await engine.arun(order_later.bind(1)), str)
    assert_type(await engine.arun(order_later, cents=1, full=True), WorkflowResult[str])
    assert_type(await engine.arun(order_later.bind(1), full=True), WorkflowResult[str])
    assert_type(await engine.aresume(order_later, "r1", full=True), WorkflowResult[str])
    assert_type(await engine.aretry(order_later, "r1", full=True), WorkflowResult[str])
    assert_type(await engine.astart(order_later, cents=1), RunHandle[str])
    assert_type(await order_later.arun(cents=1), str)
    assert_type(await order_later.arun(cents=1, full=True), WorkflowResult[str])
    assert_type(await order_later.aresume(MemoryStore(), "r1", full=True), WorkflowResult[str])
    assert_type(await order_later(1), str)
    assert_type(await no_inputs(), None)


workflows = WorkflowEngine(config={"region": "eu"})
assert_type(workflows.run(order, 1), WorkflowResult[Receipt])
assert_type(workflows.run(order, cents=1), WorkflowResult[Receipt])
assert_type(workflows.run(order.bind(1)), WorkflowResult[Receipt])
assert_type(workflows.run(bound_order()), WorkflowResult[Receipt])
assert_type(workflows.run(order, workflow_id="r1", inputs={"cents": 1}).output, Receipt | None)
assert_type(workflows.engine.run(order, cents=1), Receipt)


async def by_events() -> None:
    assert_type(await workflows.arun(order_later, cents=1), WorkflowResult[str])
    async for event in workflows.execute(order, cents=1):
        assert_type(event, Event)
    async for event in workflows.resume(order, workflow_id="r1"):
        assert_type(event, Event)
